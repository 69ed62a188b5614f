/**
 * Operations that run once, by the service API.
 *
 * In the operation, throwing {@link Retry} releases the key, {@link Refused} records a refusal, and
 * any other error means that the outcome is unknown: by default the key is held until an operator
 * resolves it. `onUnknown: "rerun"` runs it again, which is for consumers whose work may be repeated.
 */

import { NotRetained, problemOf, Lost, Refused, Retry, SemelError } from "./errors.js";
import { retryingFetch, type FetchOptions, type RetryingFetch } from "./fetch.js";
import { SEMEL } from "./retry.js";

/** The content type of a result that every repeat throws as {@link Refused}. */
const REFUSED_TYPE = "application/vnd.semel.refused+json";
const RENEWAL_TIMEOUT_MIN_MS = 50;
const ATTEMPTS_MAX = 30;

export interface ClaimOptions {
  scope?: string;
  /** What must be equal in a repeat: any JSON. */
  payload?: unknown;
  /** The same as 64 hexadecimal digits. */
  fingerprint?: string;
  onUnknown?: "hold" | "rerun" | "fail";
  /** Durations are texts such as `30s` and `7d`; by default those of the scope. */
  lease?: string;
  wait?: string;
  retention?: string;
  /** A description for operators. */
  about?: string;
  /** The caller whose key it is, where the token may name one. */
  caller?: string;
}

export interface SemelOptions extends ClaimOptions {
  scope: string;
  token?: string;
  http?: FetchOptions;
}

interface Answer {
  outcome: string;
  claim: string;
  fence: number;
  attempt: number;
  lease_ms: number;
  retained: boolean;
  result?: { content_type?: string; body?: unknown; body_base64?: string };
}

/** The calls of the service API, with retries. */
class Connection {
  readonly #fetch: RetryingFetch;
  readonly #headers: Record<string, string>;

  constructor(
    readonly url: string,
    options: SemelOptions,
  ) {
    const http = { attemptTimeoutMs: 90_000, ...options.http, keyHeader: null };
    // Without a budget, until the deadline: a claim that is given up may have been granted, and what
    // was done has to be recorded. Meanwhile the caller begins nothing else.
    const budget = { kind: "unlimited" } as const;
    const policy = { ...(options.http?.policy ?? SEMEL), attemptsMax: ATTEMPTS_MAX, budget };
    this.#fetch = retryingFetch({ ...http, policy });
    this.#headers = { "content-type": "application/json" };
    if (options.token !== undefined) this.#headers["authorization"] = `Bearer ${options.token}`;
  }

  async call(path: string, body: unknown, deadlineMs?: number): Promise<Answer> {
    return this.send(path, JSON.stringify(body), deadlineMs);
  }

  async send(path: string, body: string, deadlineMs?: number): Promise<Answer> {
    const init = { method: "POST", headers: this.#headers, body };
    const url = `${this.url}/v1/${path}`;
    const answer = await this.#fetch(url, deadlineMs === undefined ? init : { ...init, deadlineMs });
    const text = await answer.text();
    let document: Record<string, unknown> = {};
    try {
      document = JSON.parse(text) ?? {};
    } catch {
      // Whatever it is, it is no answer of the service.
    }
    if (answer.status === 200 && "outcome" in document) return document as unknown as Answer;
    const slug = String(document["type"] ?? "").split(":").at(-1) || "unexpected-answer";
    throw problemOf(answer.status, slug, String(document["detail"] ?? answer.statusText));
  }
}

/** An operation that was done. */
export class Replayed {
  constructor(
    readonly contentType: string,
    readonly body: unknown,
    readonly retained: boolean,
  ) {}

  /** The result; throws {@link Refused} where it was a refusal. */
  value(): unknown {
    if (!this.retained) throw new NotRetained("The operation was done; its result is not stored.");
    if (this.contentType === REFUSED_TYPE) throw new Refused(this.body);
    return this.body;
  }
}

/**
 * An operation that is to run, renewed in the background until it is ended or dropped. `await using` ends a claim
 * that was not ended as one with an unknown outcome.
 */
export class Claim {
  readonly fence: number;
  readonly attempt: number;
  readonly #connection: Connection;
  readonly #claim: string;
  readonly #onUnknown: string;
  #leaseMs: number;
  #askedAt: number;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #ended = false;
  #lost = false;

  /** @internal */
  constructor(connection: Connection, answer: Answer, askedAt: number, onUnknown: string) {
    this.fence = answer.fence;
    this.attempt = answer.attempt;
    this.#connection = connection;
    this.#claim = answer.claim;
    this.#leaseMs = answer.lease_ms;
    this.#askedAt = askedAt;
    this.#onUnknown = onUnknown;
    this.#schedule(this.#leaseMs / 3 - (now() - askedAt));
  }

  /** Whether another owner may have the operation by now. What was not begun should not be. */
  get lost(): boolean {
    return this.#lost || now() >= this.#askedAt + this.#leaseMs;
  }

  /**
   * Records the result: bytes as they are, anything else as JSON. A value that has none is an error,
   * and holds the key: the operation has run.
   */
  async complete(value: unknown = null, contentType?: string): Promise<void> {
    const content =
      value instanceof Uint8Array ? { body_base64: base64(value) } : { body: value ?? null };
    const type = contentType === undefined ? {} : { content_type: contentType };
    let body: string;
    try {
      body = JSON.stringify({ claim: this.#claim, result: { ...content, ...type } });
    } catch (error) {
      await this.hold("the result has no JSON").catch(() => {});
      throw error;
    }
    await this.#end("complete", body);
  }

  /** It did not happen and may run again. */
  async release(options: { counted?: boolean; reason?: string } = {}): Promise<void> {
    const body = { claim: this.#claim, counted: true, ...options };
    await this.#end("release", JSON.stringify(body));
  }

  /** The outcome is unknown; nothing runs until an operator resolves it. */
  async hold(reason?: string): Promise<void> {
    await this.#end("hold", JSON.stringify({ claim: this.#claim, reason }));
  }

  /** The operation ended without saying what came of it. */
  async abandon(why: string): Promise<void> {
    const reason = `${why} in the operation`.slice(0, 120);
    try {
      if (this.#onUnknown === "hold") await this.hold(reason);
      else if (this.#onUnknown === "rerun") await this.release({ reason });
    } catch {
      // The lease ends, with the same result.
    } finally {
      this.#stop();
    }
  }

  async #renew(): Promise<void> {
    const askedAt = now();
    const rest = this.#askedAt + this.#leaseMs - askedAt;
    if (rest <= 0) throw new SemelError("The lease has ended.");
    const within = Math.max(Math.min(rest, this.#leaseMs / 3), RENEWAL_TIMEOUT_MIN_MS);
    const answer = await this.#connection.call("claims/renew", { claim: this.#claim }, within);
    this.#leaseMs = answer.lease_ms;
    this.#askedAt = askedAt;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#ended) await this.abandon("left");
  }

  #schedule(delayMs: number): void {
    // The timer does not keep a claim that was dropped: its outcome is unknown.
    const reference = new WeakRef(this);
    const renew = () => {
      const claim = reference.deref();
      if (claim !== undefined) void claim.#renewInBackground();
    };
    this.#timer = setTimeout(renew, Math.max(delayMs, 0));
    // A renewal alone does not keep the process.
    if (typeof this.#timer === "object") this.#timer.unref();
  }

  async #renewInBackground(): Promise<void> {
    try {
      await this.#renew();
    } catch (error) {
      if (error instanceof Lost) this.#lost = true;
    }
    if (this.#ended) return;
    if (this.lost) this.#lost = true;
    else {
      const due = this.#askedAt + this.#leaseMs / 3 - now();
      this.#schedule(Math.max(due, this.#leaseMs / 30));
    }
  }

  async #end(name: string, body: string): Promise<void> {
    try {
      await this.#connection.send(`claims/${name}`, body);
    } finally {
      this.#stop();
    }
  }

  #stop(): void {
    this.#ended = true;
    clearTimeout(this.#timer);
  }
}

/** A client of the service API. */
export class Semel {
  readonly #connection: Connection;
  readonly #defaults: ClaimOptions;

  constructor(url: string, options: SemelOptions) {
    this.#connection = new Connection(url.replace(/\/+$/, ""), options);
    const { token: _token, http: _http, ...defaults } = options;
    this.#defaults = { onUnknown: "hold", ...defaults };
  }

  /** Claims a key: what to run, or what was recorded. */
  async claim(key: string, options: ClaimOptions = {}): Promise<Claim | Replayed> {
    const { onUnknown = "hold", ...rest } = { ...this.#defaults, ...options };
    const random = crypto.getRandomValues(new Uint8Array(16));
    // Drawn once per claim: a repeat of the call is the same bytes.
    const attemptId = Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
    const askedAt = now();
    const body = { ...rest, key, attempt_id: attemptId, on_unknown: onUnknown };
    const answer = await this.#connection.call("claims", body);
    if (answer.outcome !== "execute") {
      const { content_type = "", body, body_base64 } = answer.result ?? {};
      const content = body_base64 === undefined ? body : bytesOf(body_base64);
      return new Replayed(content_type, content, answer.retained);
    }
    if (now() - askedAt <= answer.lease_ms / 3) {
      return new Claim(this.#connection, answer, askedAt, onUnknown);
    }
    return this.#renewFirst(answer, onUnknown);
  }

  /** The claim waited before it was granted: only the server knows how long its lease is. */
  async #renewFirst(granted: Answer, onUnknown: string): Promise<Claim> {
    const askedAt = now();
    const { claim } = granted;
    const within = Math.max(granted.lease_ms, 1000);
    try {
      const { lease_ms } = await this.#connection.call("claims/renew", { claim }, within);
      return new Claim(this.#connection, { ...granted, lease_ms }, askedAt, onUnknown);
    } catch (error) {
      // Nothing was begun.
      await this.#connection.call("claims/release", { claim, counted: false });
      throw error;
    }
  }

  /** Runs an operation unless its key is done, and returns its recorded result. */
  async once<T>(
    key: string,
    fn: (claim: Claim) => T | Promise<T>,
    options: ClaimOptions = {},
  ): Promise<T> {
    const claim = await this.claim(key, options);
    if (claim instanceof Replayed) return claim.value() as T;
    let value: T;
    try {
      value = await fn(claim);
    } catch (error) {
      if (error instanceof Retry) await claim.release(error.message ? { reason: error.message } : {});
      else if (error instanceof Refused) await claim.complete(error.value, REFUSED_TYPE);
      else await claim.abandon(error instanceof Error ? error.name : "error");
      throw error;
    }
    await claim.complete(value);
    return value;
  }

  /** A function that runs once for each key, which comes from its arguments. */
  wrap<A extends unknown[], T>(
    keyOf: (...args: A) => string,
    fn: (...args: A) => T | Promise<T>,
    options: ClaimOptions = {},
  ): (...args: A) => Promise<T> {
    return (...args) => this.once(keyOf(...args), () => fn(...args), options);
  }
}

/**
 * Milliseconds on a clock that never falls, and counts suspend as the date does: a lease ends while
 * its owner sleeps.
 */
function now(): number {
  latest = Math.max(latest + Math.max(performance.now() - latestMonotonic, 0), Date.now());
  latestMonotonic = performance.now();
  return latest;
}

let latest = Date.now();
let latestMonotonic = performance.now();

function base64(bytes: Uint8Array): string {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

function bytesOf(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
