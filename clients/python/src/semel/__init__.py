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


def Client(*, policy: RetryPolicy = SEMEL, **options: Any) -> httpx.Client:  # noqa: N802
    """An :class:`httpx.Client` that retries."""
    return httpx.Client(transport=RetryTransport(policy=policy), **options)


def AsyncClient(*, policy: RetryPolicy = SEMEL, **options: Any) -> httpx.AsyncClient:  # noqa: N802
    """An :class:`httpx.AsyncClient` that retries."""
    return httpx.AsyncClient(transport=AsyncRetryTransport(policy=policy), **options)


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
