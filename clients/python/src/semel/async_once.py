"""Operations that run once, for asyncio.

The calls of the service API run in worker threads and leases are renewed from a thread of their own,
so that a blocked event loop does not lose a claim.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar, overload

from .once import Claim, Run, Semel
from .wire import ABSENT, Options, Replayed

P = ParamSpec("P")
R = TypeVar("R")

#: Claims wait for other owners, so what ends a claim has threads of its own.
CLAIM_THREADS = 64
END_THREADS = 16


def _submit(executor: Executor, fn: Callable[..., R], *args: Any) -> Future[R]:
    return executor.submit(contextvars.copy_context().run, fn, *args)


def _release_unused(claim: Claim | Replayed | None) -> None:
    if isinstance(claim, Claim):
        claim.release(counted=False)


class _PendingClaim:
    """A claim that a thread asks for. It is released when its caller is cancelled meanwhile."""

    def __init__(self, ask: Callable[[], Claim | Replayed]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._claim: Claim | Replayed | None = None
        self._cancelled = False

    def run(self) -> Claim | Replayed:
        claim = self._ask()
        with self._lock:
            self._claim = claim
            cancelled = self._cancelled
        if cancelled:
            _release_unused(claim)
        return claim

    def cancel(self, executor: Executor) -> None:
        with self._lock:
            self._cancelled = True
            claim = self._claim
        if claim is not None:
            executor.submit(_release_unused, claim)


class AsyncRun:
    """One operation in an ``async with`` block."""

    def __init__(self, semel: AsyncSemel, run: Run[Any]) -> None:
        self._semel = semel
        self._run = run

    @property
    def result(self) -> Any:
        """The value to record, or the recorded value if ``replayed``."""
        return self._run.result

    @result.setter
    def result(self, value: Any) -> None:
        self._run.result = value

    @property
    def replayed(self) -> bool:
        """Whether the operation was done before: then the block must not do it again."""
        return self._run.replayed

    @property
    def claim(self) -> Claim | None:
        return self._run.claim

    async def __aenter__(self) -> AsyncRun:
        self._run.begin(await self._semel._ask(self._run.ask))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        ending = _submit(self._semel._ends, self._run.__exit__, kind, error, traceback)
        # A cancelled task still records what its block did.
        await asyncio.shield(asyncio.wrap_future(ending))
        return False


class AsyncSemel:
    """A client of the service API for asyncio; its arguments are those of :class:`Semel`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._semel = Semel(*args, **kwargs)
        self._claims = ThreadPoolExecutor(CLAIM_THREADS, "semel-claim")
        self._ends = ThreadPoolExecutor(END_THREADS, "semel-end")

    async def claim(
        self,
        key: str,
        *,
        payload: Any = ABSENT,
        fingerprint: str | None = None,
        options: Options | None = None,
    ) -> Claim | Replayed:
        """Claims a key.

        The methods of the returned claim block; call them with :func:`asyncio.to_thread`.
        """
        return await self._ask(
            functools.partial(
                self._semel.claim, key, payload=payload, fingerprint=fingerprint, options=options
            )
        )

    async def _ask(self, ask: Callable[[], Claim | Replayed]) -> Claim | Replayed:
        pending = _PendingClaim(ask)
        try:
            return await asyncio.wrap_future(_submit(self._claims, pending.run))
        except BaseException:
            # Nothing was begun.
            pending.cancel(self._ends)
            raise

    @overload
    def once(
        self, key: str, fn: Callable[[], Awaitable[R]], *, payload: Any = ..., **options: Any
    ) -> Awaitable[R]: ...

    @overload
    def once(self, key: str, fn: None = None, *, payload: Any = ..., **options: Any) -> AsyncRun: ...

    @overload
    def once(
        self, key: Callable[P, str], fn: None = None, **options: Any
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]: ...

    def once(self, key: Any, fn: Any = None, *, payload: Any = ABSENT, **options: Any) -> Any:
        """Runs an operation once: see :meth:`Semel.once`."""
        chosen = replace(self._semel.options, **options)
        if callable(key):
            return self._decorator(key, chosen, payload)
        run = AsyncRun(self, Run(self._semel, key, chosen, payload))
        return run if fn is None else _call(run, fn)

    def _decorator(self, key: Callable[..., str], options: Options, payload: Any) -> Any:
        def decorate(fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            @functools.wraps(fn)
            async def wrapped(*args: Any, **kwargs: Any) -> Any:
                run = Run[Any](self._semel, key(*args, **kwargs), options, payload)
                return await _call(AsyncRun(self, run), functools.partial(fn, *args, **kwargs))

            return wrapped

        return decorate

    async def aclose(self) -> None:
        """Waits for its calls, and closes its connections."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._claims.shutdown()
        self._ends.shutdown()
        self._semel.close()

    async def __aenter__(self) -> AsyncSemel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def _call(run: AsyncRun, fn: Callable[[], Awaitable[Any]]) -> Any:
    async with run:
        if not run.replayed:
            run.result = await fn()
    return run.result
