"""Runs operations once through the service API of Semel.

>>> semel = Semel("http://127.0.0.1:8081", token="…", scope="invoices")   # doctest: +SKIP
>>> semel.once("invoice-17", lambda: send_invoice(17))                    # doctest: +SKIP

In the operation, raising :class:`Retry` releases the key, :class:`Refused` records a refusal, and any
other exception means that the outcome is unknown: by default the key is held until an operator
resolves it. With ``on_unknown="rerun"`` the operation runs again; use it for work that may be
repeated.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

import httpx

from .errors import Refused, Retry
from .renewal import Renewed, Renewer, since_boot
from .retry import SEMEL, RetryPolicy
from .transport import RetryTransport
from .wire import (
    ABSENT,
    REFUSED_TYPE,
    Granted,
    OnUnknown,
    Options,
    Replayed,
    claim_body,
    claimed,
    decode,
    encode,
    result_body,
    unknown_call,
)

#: Attempts of one call; replaces ``attempts_max`` of the policy.
ATTEMPTS_MAX = 30
CONNECT_TIMEOUT = 5
NO_JSON = "the result has no JSON"

P = ParamSpec("P")
R = TypeVar("R")


class Claim:
    """A granted claim.

    Its lease is renewed in the background until the claim is completed, released, held or
    dropped. A dropped claim's outcome is unknown.
    """

    def __init__(self, client: Connection, granted: Granted, asked_at: float) -> None:
        self._client = client
        self.fence = granted.fence
        self.attempt = granted.attempt
        self.renewed = Renewed(granted.claim, granted.lease, asked_at)
        if since_boot() - asked_at > granted.lease / 3:
            self._renew_first()
        # Without a lock: a finalizer runs anywhere.
        weakref.finalize(self, setattr, self.renewed, "dropped", True).atexit = False
        client.renewer.add(self.renewed)

    def _renew_first(self) -> None:
        """Renews at once: the claim request took long, so the rest of the lease is unknown."""
        granted = self.renewed
        asked_at = since_boot()
        try:
            lease = self._client.renew(granted.claim, max(granted.lease, 1))
        except Exception:
            # The operation has not started, so this attempt does not count.
            self.release(counted=False)
            raise
        self.renewed = Renewed(granted.claim, lease, asked_at)

    @property
    def lost(self) -> bool:
        """Whether the claim may have another owner. If so, do not start any further step."""
        return self.renewed.lost

    def complete(self, value: Any = None, content_type: str | None = None) -> None:
        """Records the result; raises :class:`semel.Lost` where the claim has another owner.

        A value that has no JSON is an error, and holds the key: the operation has run.
        """
        try:
            body = encode(result_body(self.renewed.claim, value, content_type))
        except (TypeError, ValueError, RecursionError):
            with contextlib.suppress(Exception):
                self.hold(NO_JSON)
            raise
        self._end("complete", body)

    def release(self, *, counted: bool = True, reason: str | None = None) -> None:
        """Releases the key: the operation did not happen and may run again."""
        body = {"claim": self.renewed.claim, "counted": counted}
        self._end("release", encode(body if reason is None else {**body, "reason": reason}))

    def hold(self, reason: str | None = None) -> None:
        """Holds the key: the outcome is unknown, and an operator has to resolve it."""
        body = {"claim": self.renewed.claim}
        self._end("hold", encode(body if reason is None else {**body, "reason": reason}))

    def abandon(self, options: Options, error: BaseException) -> None:
        """Ends the claim, as ``on_unknown`` says, after an exception that tells no outcome."""
        call = unknown_call(self.renewed.claim, options, error)
        try:
            if call is not None:
                self._client.call(f"claims/{call[0]}", encode(call[1]))
        except Exception:
            # The caller gets the exception of the operation, not this one. The lease expires, with
            # the same effect.
            pass
        finally:
            self._client.renewer.remove(self.renewed)

    def _end(self, name: str, body: bytes) -> None:
        try:
            self._client.call(f"claims/{name}", body)
        finally:
            self._client.renewer.remove(self.renewed)


class Connection:
    """Calls the service API, with retries."""

    def __init__(
        self,
        url: str,
        token: str | None,
        policy: RetryPolicy,
        transport: httpx.BaseTransport | None,
    ) -> None:
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        # No retry budget: a claim whose reply was lost may have been granted, and a finished
        # operation must be recorded. Calls are retried until the deadline, at most ATTEMPTS_MAX
        # times.
        policy = replace(policy, attempts_max=ATTEMPTS_MAX, budget=None)
        self._http = httpx.Client(
            base_url=url.rstrip("/") + "/v1/",
            headers=headers,
            # A claim may wait a minute for another owner's result.
            timeout=httpx.Timeout(90, connect=CONNECT_TIMEOUT),
            transport=RetryTransport(
                # However many claims wait, what ends or renews one gets a connection.
                transport or httpx.HTTPTransport(limits=httpx.Limits(max_connections=None)),
                policy=policy,
                key_header=None,
            ),
        )
        self.renewer = Renewer(self.renew)

    def call(self, path: str, body: bytes) -> dict[str, Any]:
        return decode(self._http.post(path, content=body))

    def renew(self, claim: str, within: float) -> float:
        answer = decode(
            self._http.post(
                "claims/renew",
                content=encode({"claim": claim}),
                extensions={"semel_deadline": within},
            )
        )
        return float(answer["lease_ms"]) / 1000

    def close(self) -> None:
        self._http.close()


class Run(Generic[R]):
    """Context manager that claims a key and records the result of its block."""

    def __init__(self, semel: Semel, key: str, options: Options, payload: Any) -> None:
        self._semel, self._key, self._options, self._payload = semel, key, options, payload
        self.claim: Claim | None = None
        #: Result to record; after a replay, the recorded result.
        self.result: Any = None

    @property
    def replayed(self) -> bool:
        """Whether the operation was already done; if so, the block must not run it again."""
        return self.claim is None

    def __enter__(self) -> Run[R]:
        return self.begin(self.ask())

    def ask(self) -> Claim | Replayed:
        return self._semel.claim(self._key, payload=self._payload, options=self._options)

    def begin(self, claim: Claim | Replayed) -> Run[R]:
        if isinstance(claim, Replayed):
            self.result = claim.value()
        else:
            self.claim = claim
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        claim = self.claim
        if claim is None:
            return False
        if error is None:
            claim.complete(self.result)
        elif isinstance(error, Retry):
            claim.release(reason=str(error) or None)
        elif isinstance(error, Refused):
            claim.complete(error.value, REFUSED_TYPE)
        else:
            claim.abandon(self._options, error)
        return False


class Semel:
    """A client of the service API. It may be used by several threads."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8081",
        *,
        scope: str,
        token: str | None = None,
        on_unknown: OnUnknown = "hold",
        policy: RetryPolicy = SEMEL,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.options = Options(scope=scope, on_unknown=on_unknown)
        self._connection = Connection(url, token, policy, transport)

    def claim(
        self,
        key: str,
        *,
        payload: Any = ABSENT,
        fingerprint: str | None = None,
        options: Options | None = None,
    ) -> Claim | Replayed:
        """Claims a key.

        Returns a :class:`Claim` if the operation is to run, or the recorded result as
        :class:`Replayed`.
        """
        body = encode(claim_body(key, options or self.options, payload, fingerprint))
        asked_at = since_boot()
        answer = claimed(self._connection.call("claims", body))
        if isinstance(answer, Replayed):
            return answer
        return Claim(self._connection, answer, asked_at)

    @overload
    def once(self, key: str, fn: Callable[[], R], *, payload: Any = ..., **options: Any) -> R: ...

    @overload
    def once(self, key: str, fn: None = None, *, payload: Any = ..., **options: Any) -> Run[Any]: ...

    @overload
    def once(
        self, key: Callable[P, str], fn: None = None, **options: Any
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    def once(self, key: Any, fn: Any = None, *, payload: Any = ABSENT, **options: Any) -> Any:
        """Runs an operation once.

        ``once(key, fn)`` calls ``fn`` unless the key is done, and returns its recorded result.
        ``with once(key) as run`` claims the key; the block runs in any case and must do nothing if
        ``run.replayed``. ``@once(lambda order: order.id)`` makes a function whose key comes from
        its arguments. ``options`` are fields of :class:`Options`.
        """
        chosen = replace(self.options, **options)
        if callable(key):
            return self._decorator(key, chosen, payload)
        run: Run[Any] = Run(self, key, chosen, payload)
        if fn is None:
            return run
        with run:
            if not run.replayed:
                run.result = fn()
        return run.result

    def _decorator(self, key: Callable[..., str], options: Options, payload: Any) -> Any:
        def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(fn)
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                run: Run[Any] = Run(self, key(*args, **kwargs), options, payload)
                with run:
                    if not run.replayed:
                        run.result = fn(*args, **kwargs)
                return run.result

            return wrapped

        return decorate

    def close(self) -> None:
        """Closes its connections."""
        self._connection.close()

    def __enter__(self) -> Semel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
