"""Renews leases from a thread of its own, so that neither a long computation nor a blocked event
loop lets one end."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable

from .errors import Lost, SemelError

#: Of one client.
THREADS_MAX = 8

#: After it the claim is due again, and the thread free for others.
RENEWAL_TIMEOUT_MAX = 10.0


def since_boot() -> float:
    """A clock that counts suspend where the system has one: a lease ends while its owner sleeps."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Renewed:
    """A claim whose lease is renewed at a third of it."""

    def __init__(self, claim: str, lease: float, asked_at: float) -> None:
        self.claim = claim
        self.lease = lease
        #: When the lease that is held was asked for.
        self.asked_at = asked_at
        #: Whether the claim was garbage-collected.
        self.dropped = False
        self._lost = threading.Event()

    @property
    def lost(self) -> bool:
        """Whether the claim has another owner, or may have."""
        return self._lost.is_set() or since_boot() >= self.asked_at + self.lease

    def mark_lost(self) -> None:
        self._lost.set()

    def due(self) -> float:
        return self.asked_at + self.lease / 3


class Renewer:
    """A thread for each claim of a client, up to a few: one that gets no answer holds up no other."""

    def __init__(self, renew: Callable[[str, float], float]) -> None:
        #: Renews a claim within so many seconds: the length of the new lease.
        self._renew = renew
        self._changed = threading.Condition()
        #: Those that no thread renews now, with when they are due.
        self._claims: dict[str, tuple[Renewed, float]] = {}
        self._renewing: set[str] = set()
        self._threads = self._idle = 0

    def add(self, claim: Renewed) -> None:
        with self._changed:
            self._claims[claim.claim] = (claim, claim.due())
            if self._idle < len(self._claims) and self._threads < THREADS_MAX:
                threading.Thread(target=self._run, name="semel-renew", daemon=True).start()
                self._threads += 1
                self._idle += 1
            self._changed.notify_all()

    def remove(self, claim: Renewed) -> None:
        with self._changed:
            self._claims.pop(claim.claim, None)
            self._renewing.discard(claim.claim)
            self._changed.notify_all()

    def _run(self) -> None:
        while (claim := self._next()) is not None:
            try:
                renew_now(claim, self._renew)
            except Lost:
                claim.mark_lost()
            except Exception:
                # Tried again until the lease has ended.
                pass
            with self._changed:
                self._idle += 1
                if claim.claim not in self._renewing:
                    continue
                self._renewing.remove(claim.claim)
                if claim.lost:
                    claim.mark_lost()
                else:
                    again = max(claim.due(), since_boot() + claim.lease / 30)
                    self._claims[claim.claim] = (claim, again)

    def _next(self) -> Renewed | None:
        """Waits for the claim that is due; ``None`` when more threads wait than claims."""
        with self._changed:
            while self._idle <= len(self._claims):
                claim, due = min(self._claims.values(), key=lambda entry: entry[1])
                rest = due - since_boot()
                if rest > 0:
                    self._changed.wait(rest)
                    continue
                del self._claims[claim.claim]
                if not claim.dropped:
                    self._idle -= 1
                    self._renewing.add(claim.claim)
                    return claim
            self._idle -= 1
            self._threads -= 1
            return None


def renew_now(claim: Renewed, renew: Callable[[str, float], float]) -> None:
    """Renews a lease. It counts from before the call."""
    asked_at = since_boot()
    rest = claim.asked_at + claim.lease - asked_at
    if rest <= 0:
        raise SemelError("the lease has ended")
    within = min(rest, claim.lease / 3, RENEWAL_TIMEOUT_MAX)
    claim.lease = renew(claim.claim, max(within, 0.05))
    claim.asked_at = asked_at
