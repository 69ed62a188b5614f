// Charges a card and then fails, or answers before the card is charged.
//
// GET /ledger says how many charges were made and how many requests still run.
const express = require("express");
const timeout = require("connect-timeout");
const { setTimeout: sleep } = require("node:timers/promises");

const LIMIT_MS = 200; // until a slow request is answered
const CARD_NETWORK_MS = 600; // until the card network has charged

const app = express();
const ledger = { charges: 0, running: 0 };

app.post("/raise", async () => {
  ledger.charges += 1;
  throw new Error("the receipt could not be mailed");
});

app.post("/slow", timeout(LIMIT_MS), async (request, response) => {
  ledger.running += 1;
  await sleep(CARD_NETWORK_MS);
  ledger.charges += 1;
  ledger.running -= 1;
  // connect-timeout has answered 503; the handler went on all the same.
  if (!request.timedout) response.status(201).json(ledger);
});

app.get("/ledger", (request, response) => {
  response.json(ledger);
});

const server = app.listen(0, "127.0.0.1", () => {
  console.error(`running on http://127.0.0.1:${server.address().port}`);
});
