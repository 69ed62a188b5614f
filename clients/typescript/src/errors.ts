/** What a program that uses the service API may meet. */

/** Every error of an operation or of the service. */
export class SemelError extends Error {
  constructor(message?: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** Throw it in an operation that did not happen: its key is released and may run again. */
export class Retry extends SemelError {}

/**
 * Throw it in an operation whose refusal is final: `value` is recorded, and every repeat throws the
 * same again.
 */
export class Refused extends SemelError {
  constructor(readonly value: unknown = null) {
    super("The operation was refused.");
  }
}

/** The service answered with a problem document. */
export class Problem extends SemelError {
  constructor(
    readonly status: number,
    /** The last part of its `type`, such as `key-reused`. */
    readonly slug: string,
    readonly detail: string,
  ) {
    super(`${status} ${slug}: ${detail}`);
  }
}

/** Another attempt runs, and it did not end in time. Ask again with the same key. */
export class InProgress extends Problem {}

/** An earlier attempt began and its end is unknown. Nothing runs until an operator resolves it. */
export class OutcomeUnknown extends Problem {}

/** The key belongs to another payload. */
export class KeyReused extends Problem {}

/** An earlier attempt counts as failed, by `onUnknown: "fail"`. */
export class OperationFailed extends Problem {}

/** The claim has another owner by now: the operation may run there. */
export class Lost extends Problem {}

/** The operation was done, and its result is not stored. */
export class NotRetained extends SemelError {}

const PROBLEMS: Record<string, typeof Problem> = {
  "in-progress": InProgress,
  "outcome-unknown": OutcomeUnknown,
  "key-reused": KeyReused,
  "operation-failed": OperationFailed,
  "claim-lost": Lost,
  "result-differs": Lost,
};

/** The error for a problem document. */
export function problemOf(status: number, slug: string, detail: string): Problem {
  return new (PROBLEMS[slug] ?? Problem)(status, slug, detail);
}
