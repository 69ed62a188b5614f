/**
 * Tests of `once` and `claim` against a running server. `SEMEL_TEST_API` is its address,
 * `SEMEL_TEST_TOKEN` a token for the scope `tests`.
 */

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

import * as semel from "../src/index.js";

const api = process.env["SEMEL_TEST_API"];
const token = process.env["SEMEL_TEST_TOKEN"] ?? "";
const options = api === undefined ? { skip: "SEMEL_TEST_API is not set" } : {};
const client = new semel.Semel(api ?? "", { scope: "tests", token });

const newKey = () => `order-${crypto.randomUUID()}`;

/** An operation that counts how often it runs; its outcomes are taken in order. */
function counter<T>(...outcomes: (() => T)[]) {
  const run = () => outcomes[Math.min(run.runs++, outcomes.length - 1)]!();
  run.runs = 0;
  return run;
}

function throwing(error: Error): () => never {
  return () => {
    throw error;
  };
}

test("a function runs once and its result is replayed", options, async () => {
  const [key, charge] = [newKey(), counter(() => ({ receipt: 7, note: "Zoë" }))];
  const first = await client.once(key, charge, { payload: { amount: 100 } });
  const again = await client.once(key, charge, { payload: { amount: 1e2 } });
  assert.deepEqual(again, first);
  assert.equal(charge.runs, 1);
});

test("bytes are replayed as bytes", options, async () => {
  const [key, charge] = [newKey(), counter(() => Uint8Array.of(0, 255))];
  await client.once(key, charge);
  assert.deepEqual(await client.once(key, charge), Uint8Array.of(0, 255));
});

test("a wrapped function runs once for each key", options, async () => {
  const ran: string[] = [];
  const charge = client.wrap(
    (order: string) => order,
    (order) => ran.push(order),
  );
  const [first, second] = [newKey(), newKey()];
  assert.deepEqual([await charge(first), await charge(first), await charge(second)], [1, 1, 2]);
  assert.deepEqual(ran, [first, second]);
});

test("Retry releases the key", options, async () => {
  const [key, charge] = [newKey(), counter<string>(throwing(new semel.Retry()), () => "done")];
  await assert.rejects(client.once(key, charge), semel.Retry);
  assert.equal(await client.once(key, charge), "done");
  assert.equal(charge.runs, 2);
});

test("a refusal is recorded", options, async () => {
  const [key, charge] = [newKey(), counter(throwing(new semel.Refused({ why: "declined" })))];
  for (const _ of [1, 2]) {
    await assert.rejects(client.once(key, charge), (error) => {
      assert.ok(error instanceof semel.Refused);
      assert.deepEqual(error.value, { why: "declined" });
      return true;
    });
  }
  assert.equal(charge.runs, 1);
});

test("an error holds the key", options, async () => {
  const [key, charge] = [newKey(), counter(throwing(new TypeError("reset")))];
  await assert.rejects(client.once(key, charge), TypeError);
  await assert.rejects(client.once(key, charge), semel.OutcomeUnknown);
  assert.equal(charge.runs, 1);
});

test("a result without JSON holds the key", options, async () => {
  const cycle: unknown[] = [];
  cycle.push(cycle);
  for (const result of [1n, cycle]) {
    const [key, charge] = [newKey(), counter(() => result)];
    const once = () => client.once(key, charge, { onUnknown: "rerun" });
    await assert.rejects(once(), TypeError);
    await assert.rejects(once(), semel.OutcomeUnknown);
    assert.equal(charge.runs, 1);
  }
});

test("a disposed claim holds the key, or frees it for a higher fence", options, async () => {
  const leave = async (key: string, onUnknown: "hold" | "rerun") => {
    await using claim = (await client.claim(key, { onUnknown })) as semel.Claim;
    return claim;
  };
  const held = newKey();
  await leave(held, "hold");
  await assert.rejects(client.claim(held), semel.OutcomeUnknown);
  const key = newKey();
  const [first, second] = [await leave(key, "rerun"), await leave(key, "rerun")];
  assert.deepEqual([first.attempt, second.attempt], [1, 2]);
  assert.ok(first.fence < second.fence);
});

test("another payload is refused", options, async () => {
  const key = newKey();
  await client.once(key, () => 1, { payload: { amount: 1 } });
  await assert.rejects(client.once(key, () => 2, { payload: { amount: 2 } }), semel.KeyReused);
});

test("a lease is renewed while the operation runs", options, async () => {
  const key = newKey();
  const slow = async (claim: semel.Claim) => {
    for (let turn = 0; turn < 50; turn += 1) {
      assert.equal(claim.lost, false);
      await sleep(100);
    }
    return "slow";
  };
  assert.equal(await client.once(key, slow, { lease: "2s" }), "slow");
});

test("a dropped claim is no longer renewed", options, async () => {
  const key = newKey();
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc") as () => void;
  const drop = async () => void (await client.claim(key, { lease: "1s" }));
  await drop();
  const collecting = setInterval(collect, 100);
  try {
    await assert.rejects(client.claim(key), semel.OutcomeUnknown);
  } finally {
    clearInterval(collecting);
  }
});

test("a stampede runs once", options, async () => {
  const [key, charge] = [newKey(), counter(() => sleep(200, 7))];
  const calls = Array.from({ length: 10 }, () => client.once(key, charge));
  assert.deepEqual(await Promise.all(calls), Array(10).fill(7));
  assert.equal(charge.runs, 1);
});
