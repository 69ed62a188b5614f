/** The vectors that the clients of all languages pass. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import * as keys from "../src/keys.js";
import * as retry from "../src/retry.js";

interface Step {
  call: number;
  now_ms: number;
  begin?: boolean;
  random: number;
  outcome: "not_sent" | "broken" | "timed_out" | { status: number; headers: Record<string, string> };
  expect: object;
}

interface Vectors {
  unix_seconds: number;
  scripts: { name: string; preset: keyof typeof retry.PRESETS; steps: Step[] }[];
  keys: { domain: string; parts: string[]; key: string; namespace: string; uuid: string }[];
  fingerprints: { domain: string; parts: string[]; sha256: string }[];
}

const file = process.env["SEMEL_VECTORS"] ?? new URL("../../../vectors.json", import.meta.url);
const vectors: Vectors = JSON.parse(readFileSync(file, "utf8"));

function outcomeOf(outcome: Step["outcome"]): retry.AttemptOutcome {
  if (typeof outcome === "string") return outcome;
  return retry.readSignals(outcome.status, (name) => outcome.headers[name], vectors.unix_seconds);
}

function shown(decision: retry.Decision): object {
  if (decision.decision !== "wait") return decision;
  return { decision: "wait", wait_us: Math.floor(decision.delayMs * 1000 + 1e-3) };
}

test("retries follow the vectors", () => {
  assert.ok(vectors.scripts.length >= 60);
  for (const script of vectors.scripts) {
    const policy = retry.PRESETS[script.preset];
    const budget = new retry.RetryBudget(policy.budget);
    const calls = new Map<number, { state: retry.RetryState; began: number }>();
    for (const [number, step] of script.steps.entries()) {
      if (step.begin) {
        const state = new retry.RetryState(budget, step.now_ms);
        calls.set(step.call, { state, began: step.now_ms });
        continue;
      }
      const { state, began } = calls.get(step.call)!;
      const at = { nowMs: step.now_ms, elapsedMs: step.now_ms - began, random: step.random };
      const decision = retry.decide(policy, state, budget, outcomeOf(step.outcome), at);
      assert.deepEqual(shown(decision), step.expect, `${script.name}, step ${number}`);
    }
  }
});

test("derived keys follow the vectors", async () => {
  for (const vector of vectors.keys) {
    assert.equal(await keys.deriveKey(vector.domain, ...vector.parts), vector.key);
    assert.equal(await keys.deriveUuid(vector.namespace, ...vector.parts), vector.uuid);
  }
});

test("fingerprints follow the vectors", async () => {
  for (const vector of vectors.fingerprints) {
    assert.equal(await keys.fingerprint(vector.domain, ...vector.parts), vector.sha256);
  }
});

test("time-ordered keys rise", () => {
  const made = Array.from({ length: 10_000 }, () => keys.timeOrderedKey());
  assert.deepEqual(made, [...new Set(made)].sort());
  for (const key of made) assert.match(key, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-/);
});
