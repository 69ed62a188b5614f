/** The retrying fetch against servers that misbehave. */

import assert from "node:assert/strict";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { test } from "node:test";
import type { AddressInfo } from "node:net";

import * as semel from "../src/index.js";

type Step = (answer: ServerResponse, request: IncomingMessage) => void;

/** Answers each request as the next step says. */
async function withServer(steps: Step[], use: (url: string) => Promise<void>): Promise<void> {
  const left = [...steps];
  const server = createServer((request, answer) => left.shift()!(answer, request));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    await use(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
    assert.equal(left.length, 0);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

const running: Step = (answer) => answer.writeHead(409, { "retry-after": "0" }).end("{}");
const stalls: Step = () => {};

test("the deadline leaves the answer that the operation runs", async () => {
  await withServer([running, stalls], async (url) => {
    const answer = await semel.retryingFetch()(url, { method: "POST", deadlineMs: 2000 });
    assert.equal(answer.status, 409);
  });
});

test("each attempt has the options of the caller", async () => {
  const sent: (RequestInit & { dispatcher?: unknown })[] = [];
  const fetch = semel.retryingFetch({
    fetch: async (_, init = {}) => {
      sent.push(init);
      return new Response("{}", { status: sent.length === 1 ? 503 : 200 });
    },
  });
  const dispatcher = {};
  const request = new Request("http://127.0.0.1/", { method: "POST", body: "{}", cache: "no-store" });
  const init = { credentials: "include", dispatcher } as RequestInit;
  assert.equal((await fetch(request, init)).status, 200);
  assert.equal(sent.length, 2);
  for (const attempt of sent) {
    const { method, cache, credentials, dispatcher: used } = attempt;
    assert.deepEqual([method, cache, credentials], ["POST", "no-store", "include"]);
    assert.equal(used, dispatcher);
  }
});
