/** Retries that are harmless: a retrying fetch, and operations that run once. */

export * from "./errors.js";
export { CallError, retryingFetch } from "./fetch.js";
export type { CallInit, FetchOptions, RetryingFetch } from "./fetch.js";
export { deriveKey, deriveUuid, fingerprint, randomKey, timeOrderedKey } from "./keys.js";
export { Claim, Replayed, Semel } from "./once.js";
export type { ClaimOptions, SemelOptions } from "./once.js";
export { AWS, GRPC, PRESETS, SEMEL, STRIPE } from "./retry.js";
export type { RetryPolicy } from "./retry.js";
