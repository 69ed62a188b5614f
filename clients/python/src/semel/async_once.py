"""Operations that run once, for asyncio.

The calls of the service API run in worker threads and leases are renewed from a thread of their own,
so that a blocked event loop does not lose a claim.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar, overload

from .once import Claim, Run, Semel
from .wire import ABSENT, Options, Replayed

P = ParamSpec("P")
R = TypeVar("R")


class AsyncRun:
    """One operation in an ``async with`` block."""

    def __init__(self, run: Run[Any]) -> None:
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
        entering = asyncio.ensure_future(asyncio.to_thread(self._run.__enter__))
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:
            # The block does not run, so the claim is released without counting an attempt.
            entering.add_done_callback(self._release_unused)
            raise
        return self

    def _release_unused(self, entering: asyncio.Future[Any]) -> None:
        claim = self._run.claim
        if entering.exception() is None and claim is not None:
            asyncio.get_running_loop().run_in_executor(
                None, functools.partial(claim.release, counted=False)
            )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        ending = asyncio.to_thread(self._run.__exit__, kind, error, traceback)
        # A cancelled task still records what its block did.
        await asyncio.shield(asyncio.ensure_future(ending))
        return False


class AsyncSemel:
    """A client of the service API for asyncio; its arguments are those of :class:`Semel`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._semel = Semel(*args, **kwargs)

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
        return await asyncio.to_thread(
            self._semel.claim, key, payload=payload, fingerprint=fingerprint, options=options
        )

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
        run = AsyncRun(Run(self._semel, key, chosen, payload))
        return run if fn is None else _call(run, fn)

    def _decorator(self, key: Callable[..., str], options: Options, payload: Any) -> Any:
        def decorate(fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            @functools.wraps(fn)
            async def wrapped(*args: Any, **kwargs: Any) -> Any:
                run = Run[Any](self._semel, key(*args, **kwargs), options, payload)
                return await _call(AsyncRun(run), functools.partial(fn, *args, **kwargs))

            return wrapped

        return decorate

    async def aclose(self) -> None:
        """Closes the connections of this client."""
        await asyncio.to_thread(self._semel.close)

    async def __aenter__(self) -> AsyncSemel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def _call(run: AsyncRun, fn: Callable[[], Awaitable[Any]]) -> Any:
    async with run:
        if not run.replayed:
            run.result = await fn()
    return run.result
