"""A retrying transport for httpx: one key per request, the retry rule, a deadline.

The transport reads each answer whole, because an answer that breaks off is an attempt that failed. A
POST or PATCH without a key gets a random one. After the last attempt its answer is returned, or its
exception raised; the key is in the headers of the request. httpx's read timeout is that of one attempt.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from .keys import random_key
from .retry import (
    SEMEL,
    AttemptOutcome,
    GiveUp,
    ResponseSignals,
    RetryBudget,
    RetryPolicy,
    RetryState,
    Wait,
)

KEY_HEADER = "Idempotency-Key"
DEADLINE_HEADER = "X-Request-Timeout-Ms"
KEYED_METHODS = ("POST", "PATCH")

#: Where the connection was never made, no byte of the request was sent.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_TIMED_OUT = (httpx.ReadTimeout, httpx.WriteTimeout)
_BROKEN = (httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)
_RETRIED = (*_NOT_SENT, *_TIMED_OUT, *_BROKEN)


class _Retrying:
    """What all calls of one client share."""

    def __init__(self, policy: RetryPolicy, key_header: str | None) -> None:
        self.policy = policy
        self.key_header = key_header
        self.budget = RetryBudget(policy.budget)
        self.lock = threading.Lock()
        self.clock: Callable[[], float] = time.monotonic
        self.random: Callable[[], float] = random.random


class _Call:
    """One request with all its attempts."""

    def __init__(self, shared: _Retrying, request: httpx.Request) -> None:
        self._shared = shared
        self._request = request
        self._began = shared.clock()
        deadline = request.extensions.get("semel_deadline", shared.policy.deadline)
        self._policy = shared.policy.with_deadline(deadline)
        self._timeout: dict[str, Any] = dict(request.extensions.get("timeout", {}))
        with shared.lock:
            self._state = RetryState.begin(shared.budget, self._began)
        self._running: httpx.Response | None = None
        self._gave_up: str | None = None
        #: Of one attempt, in seconds.
        self.timeout: float | None = None
        self._attempt_began = self._began
        header = shared.key_header
        if header and request.method in KEYED_METHODS and header not in request.headers:
            request.headers[header] = random_key()

    def prepare(self) -> None:
        """Before an attempt: no timeout is longer than what is left until the deadline."""
        self.timeout = self._timeout.get("read")
        self._attempt_began = self._shared.clock()
        if self._policy.deadline is None:
            return
        rest = max(self._policy.deadline - (self._attempt_began - self._began), 0.001)
        self.timeout = rest if self.timeout is None else min(self.timeout, rest)
        self._request.headers[DEADLINE_HEADER] = str(int(rest * 1000))
        limits = {name: self._timeout.get(name) for name in ("connect", "read", "write", "pool")}
        self._request.extensions = {
            **self._request.extensions,
            "timeout": {n: rest if limit is None else min(limit, rest) for n, limit in limits.items()},
        }

    def check_timeout(self) -> None:
        """The timeouts of httpx are of one read each."""
        elapsed = self._shared.clock() - self._attempt_began
        if self.timeout is not None and elapsed >= self.timeout:
            raise httpx.ReadTimeout("the whole answer did not come in time")

    def retry_after(self, result: httpx.Response | httpx.TransportError) -> float | None:
        """After an attempt: the delay before the next one, or ``None`` if it was the last."""
        shared, now = self._shared, self._shared.clock()
        with shared.lock:
            decision = self._policy.decide(
                self._state,
                shared.budget,
                _outcome(result),
                now=now,
                elapsed=now - self._began,
                random=shared.random(),
            )
        if isinstance(decision, GiveUp):
            self._gave_up = decision.reason
            self._request.extensions = {
                **self._request.extensions,
                "semel_gave_up": decision.reason,
            }
        if not isinstance(decision, Wait):
            return None
        if isinstance(result, httpx.Response) and result.status_code in (409, 423):
            self._running = result
        return decision.delay

    def final(self, result: httpx.Response | httpx.TransportError) -> httpx.Response:
        """Where the deadline cut the last attempt, what an earlier one said about the operation."""
        if isinstance(result, httpx.Response):
            return result
        if self._gave_up == "deadline" and self._running is not None:
            return self._running
        raise result


def _outcome(result: httpx.Response | httpx.TransportError) -> AttemptOutcome:
    if isinstance(result, httpx.Response):
        return ResponseSignals.read(result.status_code, result.headers.get, int(time.time()))
    if isinstance(result, _NOT_SENT):
        return "not_sent"
    return "timed_out" if isinstance(result, _TIMED_OUT) else "broken"


class _TimedStream(httpx.SyncByteStream):
    """The body of an answer, as long as its attempt has time."""

    def __init__(self, stream: httpx.SyncByteStream, call: _Call) -> None:
        self._stream, self._call = stream, call

    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            self._call.check_timeout()
            yield part

    def close(self) -> None:
        self._stream.close()


class RetryTransport(httpx.BaseTransport):
    """Sends each request until the retry rule says that it is done.

    >>> client = httpx.Client(transport=RetryTransport())
    """

    def __init__(
        self,
        transport: httpx.BaseTransport | None = None,
        *,
        policy: RetryPolicy = SEMEL,
        key_header: str | None = KEY_HEADER,
    ) -> None:
        self._inner = transport or httpx.HTTPTransport()
        self._shared = _Retrying(policy, key_header)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        call = _Call(self._shared, request)
        while True:
            call.prepare()
            result: httpx.Response | httpx.TransportError
            try:
                result = self._inner.handle_request(request)
                assert isinstance(result.stream, httpx.SyncByteStream)
                result.stream = _TimedStream(result.stream, call)
                try:
                    result.read()
                finally:
                    result.close()
            except _RETRIED as error:
                result = error
            delay = call.retry_after(result)
            if delay is None:
                return call.final(result)
            time.sleep(delay)

    def close(self) -> None:
        self._inner.close()


class AsyncRetryTransport(httpx.AsyncBaseTransport):
    """The same for :class:`httpx.AsyncClient`."""

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        policy: RetryPolicy = SEMEL,
        key_header: str | None = KEY_HEADER,
    ) -> None:
        self._inner = transport or httpx.AsyncHTTPTransport()
        self._shared = _Retrying(policy, key_header)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        call = _Call(self._shared, request)
        while True:
            call.prepare()
            result: httpx.Response | httpx.TransportError
            try:
                result = await asyncio.wait_for(self._attempt(request), call.timeout)
            except asyncio.TimeoutError:
                result = httpx.ReadTimeout("the whole answer did not come in time")
            except _RETRIED as error:
                result = error
            delay = call.retry_after(result)
            if delay is None:
                return call.final(result)
            await asyncio.sleep(delay)

    async def _attempt(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        try:
            await response.aread()
        finally:
            await response.aclose()
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()
