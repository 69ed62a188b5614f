/**
 * A fetch that retries: one key per request, the retry rule, a deadline.
 *
 * It reads each answer whole, because an answer that breaks off is an attempt that failed. A POST or
 * PATCH without a key gets a random one. After the last attempt its answer is returned, or its error
 * thrown as the `cause` of a {@link CallError}, which has the key. Where the deadline cuts the last
 * attempt, an earlier answer that asked to wait (409, 423) is returned.
 */

import { randomKey } from "./keys.js";
import {
  decide,
  readSignals,
  RetryBudget,
  RetryState,
  SEMEL,
  type AttemptOutcome,
  type GiveUpReason,
  type RetryPolicy,
} from "./retry.js";

const DEADLINE_HEADER = "x-request-timeout-ms";
const KEYED_METHODS = ["POST", "PATCH"];
const RUNNING_STATUSES = [409, 423];
const NULL_BODY_STATUSES = [204, 205, 304];
/** Error codes of a connection that was never made: no byte of the request was sent. */
const NOT_SENT = ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT"];

export interface FetchOptions {
  policy?: RetryPolicy;
  /** `null` sends no key. */
  keyHeader?: string | null;
  /** Timeout of one attempt; 30 seconds by default. */
  attemptTimeoutMs?: number;
  /** The `fetch` implementation to use; the global one by default. */
  fetch?: typeof fetch;
}

export interface CallInit extends RequestInit {
  /** Overrides the deadline of the policy. */
  deadlineMs?: number | undefined;
}

export type RetryingFetch = (input: string | URL | Request, init?: CallInit) => Promise<Response>;

/** The last attempt got no answer. A later call with the same key returns the outcome. */
export class CallError extends Error {
  constructor(
    readonly key: string | null,
    readonly reason: GiveUpReason,
    cause: unknown,
  ) {
    super(`The call was given up (${reason}).`, { cause });
    this.name = "CallError";
  }
}

/** A fetch with a retry budget of its own. */
export function retryingFetch(options: FetchOptions = {}): RetryingFetch {
  const policy = options.policy ?? SEMEL;
  const budget = new RetryBudget(policy.budget);
  const keyHeader = options.keyHeader === undefined ? "Idempotency-Key" : options.keyHeader;
  const send = options.fetch ?? fetch;

  return async (input, init = {}) => {
    const { deadlineMs = policy.deadlineMs, ...requestInit } = init;
    const request = new Request(input, requestInit);
    const body = request.body === null ? null : await request.arrayBuffer();
    const headers = new Headers(request.headers);
    if (keyHeader !== null && KEYED_METHODS.includes(request.method) && !headers.has(keyHeader)) {
      headers.set(keyHeader, randomKey());
    }
    const began = performance.now();
    const state = new RetryState(budget, began);
    let running: Response | undefined;
    for (;;) {
      const rest = deadlineMs === undefined ? Infinity : deadlineMs - (performance.now() - began);
      const timeoutMs = Math.max(Math.min(options.attemptTimeoutMs ?? 30_000, rest), 1);
      if (rest !== Infinity) headers.set(DEADLINE_HEADER, String(Math.max(Math.floor(rest), 1)));
      const own = { ...requestInit, body, headers };
      const { outcome, response, error } = await attempt(send, request, own, timeoutMs);
      if (request.signal.aborted) throw request.signal.reason;
      const nowMs = performance.now();
      const at = { nowMs, elapsedMs: nowMs - began, random: Math.random() };
      const decision = decide({ ...policy, deadlineMs }, state, budget, outcome, at);
      if (decision.decision === "wait") {
        if (response !== undefined && RUNNING_STATUSES.includes(response.status)) running = response;
        await sleep(decision.delayMs, request.signal);
        continue;
      }
      if (response !== undefined) return response;
      const reason = decision.decision === "give_up" ? decision.reason : "attempts";
      // What an earlier attempt said about the operation.
      if (reason === "deadline" && running !== undefined) return running;
      throw new CallError(keyHeader === null ? null : headers.get(keyHeader), reason, error);
    }
  };
}

interface Attempt {
  outcome: AttemptOutcome;
  response?: Response;
  error?: unknown;
}

async function attempt(
  send: typeof fetch,
  request: Request,
  init: RequestInit,
  timeoutMs: number,
): Promise<Attempt> {
  const stop = new AbortController();
  const cancel = () => stop.abort(request.signal.reason);
  if (request.signal.aborted) cancel();
  request.signal.addEventListener("abort", cancel, { once: true });
  let timedOut = false;
  // The timer of `AbortSignal.timeout` does not keep the process, and neither does a connection that
  // was closed while it was idle: the process could end in the middle of a call.
  const timer = setTimeout(() => {
    timedOut = true;
    stop.abort(new DOMException("The attempt timed out.", "TimeoutError"));
  }, Math.ceil(timeoutMs));
  try {
    const answer = await send(request.url, {
      ...settingsOf(request),
      ...init,
      signal: stop.signal,
    });
    const content = await answer.arrayBuffer();
    const head = { status: answer.status, statusText: answer.statusText, headers: answer.headers };
    const response = new Response(NULL_BODY_STATUSES.includes(answer.status) ? null : content, head);
    const unixSeconds = Math.floor(Date.now() / 1000);
    const header = (name: string) => answer.headers.get(name);
    return { outcome: readSignals(answer.status, header, unixSeconds), response };
  } catch (error) {
    if (timedOut) return { outcome: "timed_out", error };
    return { outcome: NOT_SENT.includes(codeOf(error)) ? "not_sent" : "broken", error };
  } finally {
    clearTimeout(timer);
    request.signal.removeEventListener("abort", cancel);
  }
}

/** What a caller may have set on a `Request`; a navigation cannot be sent again. */
function settingsOf(request: Request): RequestInit {
  const { method, redirect, credentials, cache, integrity, keepalive, mode } = request;
  const { referrer, referrerPolicy } = request;
  const settings = { method, redirect, credentials, cache, integrity, keepalive, referrer, referrerPolicy };
  return mode === "navigate" ? settings : { ...settings, mode };
}

/** The error code of a failed fetch (`cause.code`), or an empty string. */
function codeOf(error: unknown): string {
  const cause = error instanceof Error ? error.cause : undefined;
  return cause instanceof Error && "code" in cause ? String(cause.code) : "";
}

/** Waits, and throws the reason of the signal when it aborts. */
function sleep(delayMs: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", abort);
      resolve();
    }, delayMs);
    signal.addEventListener("abort", abort, { once: true });
  });
}
