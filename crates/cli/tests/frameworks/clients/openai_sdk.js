// Makes calls with OpenAI's own SDK, and says what came of each: a line of JSON.
//
// Reads {"url": URL, "sequences": [[CALL, ...], ...]} from standard input. The calls of a sequence
// are made one after the other, the sequences at the same time.
const { readFileSync } = require("node:fs");
const OpenAI = require("openai");

async function outcome(url, call) {
  const client = new OpenAI({
    apiKey: call.api_key,
    baseURL: `${url}/v1`,
    maxRetries: call.retries,
  });
  try {
    const made = await client.chat.completions.create(
      { model: "a-model", messages: [{ role: "user", content: call.description }] },
      { headers: { "Idempotency-Key": call.key } },
    );
    return { resolved: made };
  } catch (error) {
    // An answer that breaks off midway is not an error of the SDK's own.
    return {
      class: error.constructor.name,
      status: error.status,
      code: error.code,
      message: error.error?.message ?? error.message,
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

main().then(() => process.exit());
