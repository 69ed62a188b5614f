// Makes calls with Stripe's own SDK, and says what came of each: a line of JSON.
//
// Reads {"url": URL, "sequences": [[CALL, ...], ...]} from standard input. The calls of a sequence
// are made one after the other, the sequences at the same time.
const { readFileSync } = require("node:fs");
const Stripe = require("stripe");

async function outcome(url, call) {
  const { hostname, port } = new URL(url);
  const stripe = new Stripe(call.api_key, {
    protocol: "http",
    host: hostname,
    port,
    maxNetworkRetries: call.retries,
  });
  const service = stripe[call.resource];
  const options = call.key ? { idempotencyKey: call.key } : {};
  try {
    const made =
      call.method === "retrieve"
        ? await service.retrieve("cus_1", {}, options)
        : await service.create({ description: call.description }, options);
    return { resolved: made };
  } catch (error) {
    if (!(error instanceof Stripe.errors.StripeError)) throw error;
    return {
      class: error.type.replace(/^Stripe/, ""),
      status: error.statusCode,
      code: error.code,
      message: error.message,
    };
  }
}

async function run(url, sequence) {
  for (const call of sequence) {
    console.log(JSON.stringify({ name: call.name, ...(await outcome(url, call)) }));
  }
}

async function main() {
  const { url, sequences } = JSON.parse(readFileSync(0, "utf8"));
  await Promise.all(sequences.map((sequence) => run(url, sequence)));
}

// The SDK leaves a timer of 80 seconds for each request, which would keep the process.
main().then(() => process.exit());
