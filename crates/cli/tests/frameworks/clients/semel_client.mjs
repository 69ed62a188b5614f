// Makes calls with Semel's client for TypeScript, and says what came of each: a line of JSON.
//
// Reads {"url": URL, "calls": [{"path": PATH, "timeout": SECONDS, "body": TEXT}, ...]} from standard
// input. Each call has a client of its own, with a retry budget of its own. The first argument is the
// package's module.

import { readFileSync } from "node:fs";

const { retryingFetch } = await import(process.argv[2]);
const wanted = JSON.parse(readFileSync(0, "utf8"));

async function run(call) {
  const fetch = retryingFetch({ attemptTimeoutMs: call.timeout * 1000 });
  const headers = { "content-type": "application/json" };
  const init = { method: "POST", headers, body: call.body };
  const answer = await fetch(`${wanted.url}/${call.path}`, init);
  const line = { path: call.path, status: answer.status, body: await answer.text() };
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

await Promise.all(wanted.calls.map(run));
