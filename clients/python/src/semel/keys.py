"""Idempotency keys: random, or derived from existing ids.

A key stands for an intent, "bill customer 7 for February", and every attempt of that intent carries
the same key. Derived keys are the same bytes as those of ``semel key derive``, of the Rust crate and
of the TypeScript package.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
import uuid

_LOCK = threading.Lock()
_last = 0


def random_key() -> str:
    """A new random key, a UUID of version 4. Store it before the first attempt."""
    return str(uuid.uuid4())


def time_ordered_key() -> str:
    """A new key that sorts after those made before it in this process, a UUID of version 7.

    It reveals when it was made.
    """
    global _last
    with _LOCK:
        # 48 bits of milliseconds and 12 bits that count within one, as a single number that rises.
        _last = max((time.time_ns() // 1_000_000) << 12 | secrets.randbits(11), _last + 1)
        rising = _last
    value = (rising >> 12) << 80 | 7 << 76 | (rising & 0xFFF) << 64
    return str(uuid.UUID(int=value | 0b10 << 62 | secrets.randbits(62)))


def derive_key(domain: str, *parts: str | bytes) -> str:
    """The SHA-256 of a domain and these parts: equal parts give equal keys.

    >>> derive_key("invoicing", "c-7", "2026-02")[:16]
    'a8251c19e43987d4'
    """
    return hashlib.sha256(_netstrings((domain, *parts))).hexdigest()


def derive_uuid(namespace: uuid.UUID, *parts: str | bytes) -> str:
    """The UUID of version 5 for these parts in a namespace of your own.

    >>> derive_uuid(uuid.NAMESPACE_URL, "c-7", "2026-02")
    'de88812b-5d8b-59ff-9593-96611fd3ef7b'
    """
    digest = bytearray(hashlib.sha1(namespace.bytes + _netstrings(parts)).digest()[:16])
    return str(uuid.UUID(bytes=bytes(digest), version=5))


def fingerprint(domain: str, *parts: str | bytes) -> str:
    """What must be equal in a repeat, as 64 hexadecimal digits; for payloads that are not JSON."""
    digest = hashlib.sha256(b"\x01")
    for part in (domain, *parts):
        data = _bytes(part)
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def _netstrings(parts: tuple[str | bytes, ...]) -> bytes:
    data = (_bytes(part) for part in parts)
    return b"".join(b"%d:%b," % (len(part), part) for part in data)


def _bytes(part: str | bytes) -> bytes:
    return part.encode() if isinstance(part, str) else part
