"""Retries that are harmless: a retrying HTTP client, and operations that run once.

``Client`` and ``AsyncClient`` are those of httpx with a :class:`RetryTransport`; ``Semel`` and
``AsyncSemel`` speak with the service API of a Semel server.
"""

from __future__ import annotations

from typing import Any

import httpx

from .async_once import AsyncRun, AsyncSemel
from .errors import (
    InProgress,
    KeyReused,
    Lost,
    NotRetained,
    OperationFailed,
    OutcomeUnknown,
    Problem,
    Refused,
    Retry,
    SemelError,
)
from .keys import derive_key, derive_uuid, fingerprint, random_key, time_ordered_key
from .once import Claim, Run, Semel
from .retry import AWS, GRPC, SEMEL, STRIPE, RetryPolicy
from .transport import AsyncRetryTransport, RetryTransport
from .wire import ABSENT, Options, Replayed


_TIMEOUT = httpx.Timeout(30, connect=5)
_CONNECTION = ("verify", "cert", "trust_env", "http1", "http2", "limits", "proxy")


def Client(*, policy: RetryPolicy = SEMEL, **options: Any) -> httpx.Client:  # noqa: N802
    """An :class:`httpx.Client` that retries, with its options. ``timeout`` is that of one attempt.

    Proxies of the environment are not used: give ``proxy``.
    """
    connection = _connection_options(options)
    transport = RetryTransport(httpx.HTTPTransport(**connection), policy=policy)
    return httpx.Client(transport=transport, **options)


def AsyncClient(*, policy: RetryPolicy = SEMEL, **options: Any) -> httpx.AsyncClient:  # noqa: N802
    """The same as an :class:`httpx.AsyncClient`."""
    connection = _connection_options(options)
    transport = AsyncRetryTransport(httpx.AsyncHTTPTransport(**connection), policy=policy)
    return httpx.AsyncClient(transport=transport, **options)


def _connection_options(options: dict[str, Any]) -> dict[str, Any]:
    """Takes out what httpx would ignore beside a transport."""
    for name in ("transport", "mounts", "proxies", "app"):
        if name in options:
            raise TypeError(f"{name} is not an option: give httpx.Client a semel.RetryTransport")
    options.setdefault("timeout", _TIMEOUT)
    options.setdefault("trust_env", True)
    taken = {name: options.pop(name) for name in _CONNECTION if name in options}
    # It is an option of both.
    options["trust_env"] = taken["trust_env"]
    return taken


__all__ = [
    "ABSENT",
    "AWS",
    "GRPC",
    "SEMEL",
    "STRIPE",
    "AsyncClient",
    "AsyncRetryTransport",
    "AsyncRun",
    "AsyncSemel",
    "Claim",
    "Client",
    "InProgress",
    "KeyReused",
    "Lost",
    "NotRetained",
    "OperationFailed",
    "Options",
    "OutcomeUnknown",
    "Problem",
    "Refused",
    "Replayed",
    "Retry",
    "RetryPolicy",
    "RetryTransport",
    "Run",
    "Semel",
    "SemelError",
    "derive_key",
    "derive_uuid",
    "fingerprint",
    "random_key",
    "time_ordered_key",
]
