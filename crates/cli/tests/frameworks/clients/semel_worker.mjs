// A worker that runs each of its messages once.
//
// Reads {"messages": [ID, ...], "on_unknown": TEXT, "runs": FILE, "finished": FILE} from standard input.
// Each run appends its message and its fence to one file; the other one has the messages that are held.
// The first argument is the package's module.

import { appendFileSync, readFileSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const { OutcomeUnknown, Semel } = await import(process.argv[2]);
const wanted = JSON.parse(readFileSync(0, "utf8"));
const service = new Semel(process.env.SEMEL_API, {
  scope: "messages",
  token: process.env.SEMEL_TOKEN,
  onUnknown: wanted.on_unknown,
  // A reply that is lost with a killed server is asked for again long before the deadline of the call.
  http: { attemptTimeoutMs: 15_000 },
});

const held = [];
for (const message of wanted.messages) {
  const run = async (claim) => {
    appendFileSync(wanted.runs, `${message} ${claim.fence}\n`);
    await sleep(20);
    return null;
  };
  try {
    await service.once(message, run, { lease: "2s" });
  } catch (error) {
    if (!(error instanceof OutcomeUnknown)) throw error;
    held.push(`${message}\n`);
  }
}
writeFileSync(wanted.finished, held.join(""));
