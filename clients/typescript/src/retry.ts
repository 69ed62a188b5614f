/**
 * When a client sends a request again: attempts, backoff with jitter, deadline and retry budget.
 *
 * A pure rule without clock and I/O, number by number that of `core::retry` in Rust:
 * `clients/vectors.json` is generated there, and the tests of this package pass it. Times are in
 * milliseconds.
 */

const WAIT_BACKOFF_MAX_MS = 1000;
const AWS_RETRY_AFTER_SPAN_MS = 5000;
const WINDOW_SECONDS = 10;
const WINDOW_PERCENT = 10;
const NUMBER = /^[0-9]{1,9}$/;
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const HTTP_DATE =
  /^[A-Z][a-z]{2}, (\d\d) ([A-Z][a-z]{2}) (\d{4}) (\d\d):(\d\d):(\d\d) GMT(?:,|$)/;

/** Status and headers of a response, as far as the rules of retries look at them. */
export interface ResponseSignals {
  status: number;
  xShouldRetry?: boolean | undefined;
  stripeShouldRetry?: boolean | undefined;
  /** `retry-after-ms`, or else `Retry-After`, from now on. */
  retryAfterMs?: number | undefined;
  awsRetryAfterMs?: number | undefined;
  grpcStatus?: number | undefined;
  /** `grpc-retry-pushback-ms`; infinite where it forbids retries. */
  grpcPushbackMs?: number | undefined;
}

/**
 * How one attempt ended: no byte was sent, the connection broke, no complete answer came in time, or
 * there was an answer.
 */
export type AttemptOutcome = "not_sent" | "broken" | "timed_out" | ResponseSignals;

export type GiveUpReason = "attempts" | "deadline" | "budget" | "refused";

export type Decision =
  | { decision: "done" }
  | { decision: "wait"; delayMs: number }
  | { decision: "give_up"; reason: GiveUpReason };

/** The delay before a retry: the base, doubled with each retry up to the maximum, then jitter. */
export interface Backoff {
  baseMs: number;
  throttledBaseMs: number;
  maxMs: number;
  /** Full jitter, or half the delay to the whole but never below the base. */
  jitter: "full" | "half";
}

/**
 * `window`: over 10 seconds a tenth of the first attempts, and as many more as bring a client that
 * sends less than one request a second up to one a second. `tokens`: AWS's bucket. `throttle`:
 * gRPC's, in thousandths of a token.
 */
export type BudgetRule =
  | { kind: "window" }
  | { kind: "tokens"; max: number; retry: number; throttled: number; refill: number }
  | { kind: "throttle"; maxMilli: number; refillMilli: number }
  | { kind: "unlimited" };

/** How a client retries. */
export interface RetryPolicy {
  rule: "semel" | "aws" | "stripe" | "grpc";
  attemptsMax: number;
  backoff: Backoff;
  /** For one call with all its attempts and delays; `undefined` for no limit. */
  deadlineMs: number | undefined;
  budget: BudgetRule;
}

/**
 * Reads a response head. `header` finds a value by its name in lower case. Of a repeated header the
 * first value counts, also where the values are joined by commas.
 */
export function readSignals(
  status: number,
  header: (name: string) => string | null | undefined,
  unixSeconds: number,
): ResponseSignals {
  const value = (name: string) => header(name)?.trim();
  const pushback = value("grpc-retry-pushback-ms");
  return {
    status,
    xShouldRetry: boolean(value("x-should-retry")),
    stripeShouldRetry: boolean(value("stripe-should-retry")),
    retryAfterMs: number(value("retry-after-ms")) ?? delay(value("retry-after"), unixSeconds),
    awsRetryAfterMs: number(value("x-amz-retry-after")),
    grpcStatus: number(value("grpc-status")),
    grpcPushbackMs: pushback === undefined ? undefined : (number(pushback) ?? Infinity),
  };
}

/** The retry budget of one client: bounds the load that retries add when a server fails. */
export class RetryBudget {
  readonly #rule: BudgetRule;
  #tokens = 0;
  readonly #window = Array.from({ length: WINDOW_SECONDS }, () => ({
    second: 0,
    firstAttempts: 0,
    retries: 0,
  }));

  constructor(rule: BudgetRule) {
    this.#rule = rule;
    if (rule.kind === "tokens") this.#tokens = rule.max;
    if (rule.kind === "throttle") this.#tokens = rule.maxMilli;
  }

  onFirstAttempt(nowMs: number): void {
    if (this.#rule.kind === "window") this.#slot(nowMs).firstAttempts += 1;
  }

  onSuccess(paid: number | undefined): void {
    const rule = this.#rule;
    if (rule.kind === "tokens") {
      this.#tokens = Math.min(this.#tokens + (paid ?? rule.refill), rule.max);
    } else if (rule.kind === "throttle") {
      this.#tokens = Math.min(this.#tokens + rule.refillMilli, rule.maxMilli);
    }
  }

  onFailure(): void {
    if (this.#rule.kind === "throttle") this.#tokens = Math.max(this.#tokens - 1000, 0);
  }

  /** Takes a retry out of the budget: what it paid, or `undefined` if it is used up. */
  withdraw(nowMs: number, throttled: boolean): number | undefined {
    const rule = this.#rule;
    switch (rule.kind) {
      case "unlimited":
        return 0;
      case "tokens": {
        const cost = throttled ? rule.throttled : rule.retry;
        if (this.#tokens < cost) return undefined;
        this.#tokens -= cost;
        return cost;
      }
      case "throttle":
        return this.#tokens > Math.floor(rule.maxMilli / 2) ? 0 : undefined;
      case "window": {
        const second = Math.floor(nowMs / 1000);
        const recent = this.#window.filter((slot) => second - slot.second < WINDOW_SECONDS);
        const firstAttempts = recent.reduce((sum, slot) => sum + slot.firstAttempts, 0);
        const retries = recent.reduce((sum, slot) => sum + slot.retries, 0);
        const floor = Math.max(WINDOW_SECONDS - firstAttempts, 0) * 100;
        if ((retries + 1) * 100 > firstAttempts * WINDOW_PERCENT + floor) return undefined;
        this.#slot(nowMs).retries += 1;
        return 0;
      }
    }
  }

  #slot(nowMs: number): { second: number; firstAttempts: number; retries: number } {
    const second = Math.floor(nowMs / 1000);
    const slot = this.#window[second % WINDOW_SECONDS]!;
    if (slot.second !== second) Object.assign(slot, { second, firstAttempts: 0, retries: 0 });
    return slot;
  }
}

/** What is remembered of a logical call between its attempts. */
export class RetryState {
  /** Attempts so far, without those that only waited. */
  attempts = 1;
  retries = 0;
  paid: number | undefined;

  /** A call whose first attempt is sent now. */
  constructor(budget: RetryBudget, nowMs: number) {
    budget.onFirstAttempt(nowMs);
  }
}

/** When an attempt ended. */
export interface Moment {
  nowMs: number;
  elapsedMs: number;
  /** At least 0 and below 1. */
  random: number;
}

type Meaning = "success" | "refusal" | "running" | "retryable" | "throttled" | "refused";

/** What to do after an attempt that ended like this. */
export function decide(
  policy: RetryPolicy,
  call: RetryState,
  budget: RetryBudget,
  outcome: AttemptOutcome,
  at: Moment,
): Decision {
  const meaning = meaningOf(policy.rule, outcome);
  if (meaning === "success" || meaning === "refusal") {
    if (meaning === "success") budget.onSuccess(call.paid);
    return { decision: "done" };
  }
  if (meaning === "refused") {
    budget.onFailure();
    return { decision: "give_up", reason: "refused" };
  }
  const waits = meaning === "running";
  if (!waits) {
    budget.onFailure();
    if (call.attempts >= policy.attemptsMax) return { decision: "give_up", reason: "attempts" };
  }
  const delayMs = delayBefore(policy, call, outcome, meaning, at.random);
  if (policy.deadlineMs !== undefined && at.elapsedMs + delayMs >= policy.deadlineMs) {
    return { decision: "give_up", reason: "deadline" };
  }
  if (!waits) {
    const paid = budget.withdraw(at.nowMs, meaning === "throttled");
    if (paid === undefined) return { decision: "give_up", reason: "budget" };
    call.paid = paid;
    call.attempts += 1;
  }
  call.retries = pushbackOf(policy, outcome) === undefined ? call.retries + 1 : 0;
  return { decision: "wait", delayMs };
}

function delayBefore(
  policy: RetryPolicy,
  call: RetryState,
  outcome: AttemptOutcome,
  meaning: Meaning,
  random: number,
): number {
  const { baseMs, throttledBaseMs, maxMs, jitter } = policy.backoff;
  const base = meaning === "throttled" ? throttledBaseMs : baseMs;
  let bound = Math.min(base * 2 ** Math.min(call.retries, 31), maxMs);
  if (meaning === "running") bound = Math.min(bound, WAIT_BACKOFF_MAX_MS);
  const own = jitter === "full" ? bound * random : Math.max(bound * 0.5 * (1 + random), baseMs);
  if (typeof outcome === "string") return own;
  if (policy.rule === "semel") return own + (outcome.retryAfterMs ?? 0);
  if (policy.rule === "aws" && outcome.awsRetryAfterMs !== undefined) {
    return Math.min(Math.max(outcome.awsRetryAfterMs, own), own + AWS_RETRY_AFTER_SPAN_MS);
  }
  return pushbackOf(policy, outcome) ?? own;
}

function pushbackOf(policy: RetryPolicy, outcome: AttemptOutcome): number | undefined {
  if (policy.rule !== "grpc" || typeof outcome === "string") return undefined;
  return outcome.grpcPushbackMs === Infinity ? undefined : outcome.grpcPushbackMs;
}

function meaningOf(rule: RetryPolicy["rule"], outcome: AttemptOutcome): Meaning {
  if (typeof outcome === "string") return "retryable";
  const { status } = outcome;
  const done: Meaning = status < 400 ? "success" : "refusal";
  const failed: Meaning = status === 429 ? "throttled" : "retryable";
  switch (rule) {
    case "semel":
      return semelMeaning(outcome, done, failed);
    case "aws":
      return [429, 500, 502, 503, 504].includes(status) ? failed : done;
    case "stripe":
      return (outcome.stripeShouldRetry ?? (status === 409 || status >= 500)) ? "retryable" : done;
    case "grpc":
      return grpcMeaning(outcome);
  }
}

function semelMeaning(outcome: ResponseSignals, done: Meaning, failed: Meaning): Meaning {
  const locked = outcome.status === 409 || outcome.status === 423;
  const asked = outcome.xShouldRetry ?? outcome.stripeShouldRetry;
  if (outcome.status < 400 || asked === false) return done;
  if (asked === true) return locked ? "running" : failed;
  if (locked && outcome.retryAfterMs !== undefined) return "running";
  return [408, 425, 429, 500, 502, 503, 504].includes(outcome.status) ? failed : done;
}

function grpcMeaning(outcome: ResponseSignals): Meaning {
  const unavailable =
    outcome.grpcStatus === undefined
      ? [429, 502, 503, 504].includes(outcome.status)
      : outcome.grpcStatus === 14;
  if (!unavailable) return outcome.grpcStatus === 0 ? "success" : "refusal";
  return outcome.grpcPushbackMs === Infinity ? "refused" : "retryable";
}

function boolean(text: string | undefined): boolean | undefined {
  const first = firstOf(text);
  return first === "true" ? true : first === "false" ? false : undefined;
}

function firstOf(text: string | undefined): string | undefined {
  return text?.split(",", 1)[0]!.trim();
}

function number(text: string | undefined): number | undefined {
  const first = firstOf(text);
  return first !== undefined && NUMBER.test(first) ? Number(first) : undefined;
}

function delay(text: string | undefined, unixSeconds: number): number | undefined {
  const seconds = number(text);
  if (seconds !== undefined) return seconds * 1000;
  const date = HTTP_DATE.exec(text ?? "");
  if (date === null) return undefined;
  const month = MONTHS.indexOf(date[2]!);
  const [day, year, hour, minute, second] = [1, 3, 4, 5, 6].map((at) => Number(date[at]));
  const isDay = month >= 0 && day! >= 1 && day! <= 31 && year! >= 1970;
  if (!isDay || hour! >= 24 || minute! >= 60 || second! > 60) return undefined;
  const moment = Date.UTC(year!, month, day, hour, minute, second);
  return Math.max(moment - unixSeconds * 1000, 0);
}

const FAST: Backoff = { baseMs: 50, throttledBaseMs: 1000, maxMs: 20_000, jitter: "full" };

/** Semel's own policy. */
export const SEMEL: RetryPolicy = {
  rule: "semel",
  attemptsMax: 5,
  backoff: FAST,
  deadlineMs: 60_000,
  budget: { kind: "window" },
};

/** AWS's SDKs, retry mode `standard` of 2026. */
export const AWS: RetryPolicy = {
  rule: "aws",
  attemptsMax: 3,
  backoff: FAST,
  deadlineMs: undefined,
  budget: { kind: "tokens", max: 500, retry: 14, throttled: 5, refill: 1 },
};

/** Stripe's SDKs: two retries, half a second to five, no budget. */
export const STRIPE: RetryPolicy = {
  rule: "stripe",
  attemptsMax: 3,
  backoff: { baseMs: 500, throttledBaseMs: 500, maxMs: 5000, jitter: "half" },
  deadlineMs: undefined,
  budget: { kind: "unlimited" },
};

/** gRPC with the numbers of proposal A6. */
export const GRPC: RetryPolicy = {
  rule: "grpc",
  attemptsMax: 4,
  backoff: { baseMs: 100, throttledBaseMs: 100, maxMs: 1000, jitter: "full" },
  deadlineMs: undefined,
  budget: { kind: "throttle", maxMilli: 10_000, refillMilli: 100 },
};

export const PRESETS = { semel: SEMEL, aws: AWS, stripe: STRIPE, grpc: GRPC };
