/**
 * Idempotency keys: random, or derived from existing ids.
 *
 * A key stands for an intent, "bill customer 7 for February", and every attempt of that intent carries
 * the same key. Derived keys are the same bytes as those of `semel key derive`, of the Rust crate and
 * of the Python package.
 */

const encoder = new TextEncoder();
let last = 0n;

/** A new random key, a UUID of version 4. Store it before the first attempt. */
export function randomKey(): string {
  return crypto.randomUUID();
}

/**
 * A new key that sorts after those made before it in this process, a UUID of version 7. It reveals
 * when it was made.
 */
export function timeOrderedKey(): string {
  const random = crypto.getRandomValues(new BigUint64Array(2));
  // 48 bits of milliseconds and 12 bits that count within one, as a single number that rises.
  const now = (BigInt(Date.now()) << 12n) | (random[0]! & 0x7ffn);
  last = now > last ? now : last + 1n;
  const high = ((last >> 12n) << 16n) | 0x7000n | (last & 0xfffn);
  const low = (random[1]! & 0x3fff_ffff_ffff_ffffn) | (2n << 62n);
  return hyphenated(high.toString(16).padStart(16, "0") + low.toString(16).padStart(16, "0"));
}

/** The SHA-256 of a domain and these parts: equal parts give equal keys. */
export async function deriveKey(domain: string, ...parts: string[]): Promise<string> {
  return hex(await crypto.subtle.digest("SHA-256", netstrings([domain, ...parts])));
}

/** The UUID of version 5 for these parts in a namespace of your own, which is a UUID. */
export async function deriveUuid(namespace: string, ...parts: string[]): Promise<string> {
  const digits = namespace.replaceAll("-", "");
  if (!/^[0-9a-fA-F]{32}$/.test(digits)) throw new TypeError("The namespace is not a UUID.");
  const prefix = Uint8Array.from({ length: 16 }, (_, at) => parseInt(digits.substr(at * 2, 2), 16));
  const data = concat([prefix, netstrings(parts)]);
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-1", data)).slice(0, 16);
  bytes[6] = (bytes[6]! & 0x0f) | 0x50;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  return hyphenated(hex(bytes));
}

/** What must be equal in a repeat, as 64 hexadecimal digits; for payloads that are not JSON. */
export async function fingerprint(
  domain: string,
  ...parts: (string | Uint8Array)[]
): Promise<string> {
  const pieces = [Uint8Array.of(1)];
  for (const part of [domain, ...parts]) {
    const data = typeof part === "string" ? encoder.encode(part) : part;
    const length = new DataView(new ArrayBuffer(8));
    length.setBigUint64(0, BigInt(data.length));
    pieces.push(new Uint8Array(length.buffer), new Uint8Array(data));
  }
  return hex(await crypto.subtle.digest("SHA-256", concat(pieces)));
}

function netstrings(parts: string[]): Uint8Array<ArrayBuffer> {
  const comma = encoder.encode(",");
  return concat(
    parts.flatMap((part) => {
      const data = encoder.encode(part);
      return [encoder.encode(`${data.length}:`), data, comma];
    }),
  );
}

function concat(pieces: Uint8Array[]): Uint8Array<ArrayBuffer> {
  const whole = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

function hex(bytes: ArrayBuffer | Uint8Array): string {
  return Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function hyphenated(digits: string): string {
  return digits.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}
