// Records when Stripe's own SDK retries: the delays of each call against a scripted server.
//
// Reads [{"random": NUMBER, "answers": [[STATUS, {HEADER: VALUE}] or null, ...]}, ...] from standard
// input, where null breaks the connection, and writes one line for each call: {"delays": [SECONDS, ...],
// "requests": COUNT}. No time passes.

const http = require("node:http");
const { readFileSync } = require("node:fs");
const stripe = require("stripe");

let answers = [];
let delays = [];
let requests = 0;

const server = http.createServer((request, response) => {
  request.resume();
  request.on("end", () => {
    requests += 1;
    const answer = answers.length > 0 ? answers.shift() : [200, {}];
    if (answer === null) {
      request.socket.resetAndDestroy();
      return;
    }
    const [status, headers] = answer;
    const error = { error: { type: "api_error", message: "scripted" } };
    const body = JSON.stringify(status >= 400 ? error : { id: "cus_1", object: "customer" });
    response.writeHead(status, { ...headers, "content-length": body.length }).end(body);
  });
});

// The SDK waits by this function alone; sockets have timers of their own.
const later = setTimeout;
globalThis.setTimeout = (run, milliseconds, ...rest) => {
  delays.push(milliseconds / 1000);
  return later(run, 0, ...rest);
};

async function record(port, call) {
  [answers, delays, requests] = [[...call.answers], [], 0];
  Math.random = () => call.random;
  const client = stripe("sk_test_recorded", {
    host: "127.0.0.1",
    port,
    protocol: "http",
    maxNetworkRetries: 2,
    telemetry: false,
  });
  try {
    await client.customers.create({ description: "an order" });
  } catch {
    // What counts is what was sent.
  }
  return { delays, requests };
}

server.listen(0, "127.0.0.1", async () => {
  for (const call of JSON.parse(readFileSync(0, "utf8"))) {
    console.log(JSON.stringify(await record(server.address().port, call)));
  }
  process.exit(0);
});
