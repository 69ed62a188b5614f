const express = require("express");
const { setTimeout: sleep } = require("node:timers/promises");

const app = express();
const charges = [];

app.post("/charges", express.json(), async (request, response) => {
  await sleep(100); // the card network
  const { customer, amount } = request.body;
  const made = { id: `ch_${charges.length + 1}`, customer, amount };
  charges.push(made);
  response.status(201).json(made);
});

app.get("/charges", (request, response) => {
  response.json(charges);
});

exports.server = app.listen(process.env.PORT ?? 3000, "127.0.0.1");
