"""When a client sends a request again: attempts, backoff with jitter, deadline and retry budget.

Pure functions without clock and I/O, equivalent to ``core::retry`` in Rust. The tests check them
against ``clients/vectors.json``, which the Rust code generates.
"""

from __future__ import annotations

import calendar
import email.utils
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

WAIT_BACKOFF_MAX = 1.0
AWS_RETRY_AFTER_SPAN = 5.0
WINDOW_SECONDS = 10
WINDOW_PERCENT = 10
DIGITS_MAX = 9

Rule = Literal["semel", "aws", "stripe", "grpc"]
GiveUpReason = Literal["attempts", "deadline", "budget", "refused"]


@dataclass(frozen=True)
class ResponseSignals:
    """The status and those headers of a response that decide about retries."""

    status: int
    x_should_retry: bool | None = None
    stripe_should_retry: bool | None = None
    #: ``retry-after-ms``, or else ``Retry-After``, in seconds from now.
    retry_after: float | None = None
    aws_retry_after: float | None = None
    grpc_status: int | None = None
    #: ``grpc-retry-pushback-ms`` in seconds; infinite where it forbids retries.
    grpc_pushback: float | None = None

    @classmethod
    def read(
        cls, status: int, header: Callable[[str], str | None], unix_seconds: int
    ) -> ResponseSignals:
        """Reads a response head. ``header`` finds a value by its name in lower case."""

        def value(name: str) -> str | None:
            text = header(name)
            return None if text is None else text.strip()

        def milliseconds(name: str) -> float | None:
            number = _number(value(name))
            return None if number is None else number / 1000

        retry_after = milliseconds("retry-after-ms")
        if retry_after is None:
            retry_after = _delay(value("retry-after"), unix_seconds)
        pushback = milliseconds("grpc-retry-pushback-ms")
        if pushback is None and value("grpc-retry-pushback-ms") is not None:
            pushback = math.inf
        return cls(
            status=status,
            x_should_retry=_boolean(value("x-should-retry")),
            stripe_should_retry=_boolean(value("stripe-should-retry")),
            retry_after=retry_after,
            aws_retry_after=milliseconds("x-amz-retry-after"),
            grpc_status=_number(value("grpc-status")),
            grpc_pushback=pushback,
        )


#: How one attempt ended: no byte was sent, the connection broke, no complete answer came in time,
#: or there was an answer.
AttemptOutcome = Literal["not_sent", "broken", "timed_out"] | ResponseSignals


@dataclass(frozen=True)
class Done:
    """The answer is final."""


@dataclass(frozen=True)
class Wait:
    """Send the request again after this delay, in seconds."""

    delay: float


@dataclass(frozen=True)
class GiveUp:
    """The attempt failed, and there will not be another one."""

    reason: GiveUpReason


Decision = Done | Wait | GiveUp


@dataclass(frozen=True)
class Backoff:
    """The delay before a retry: the base, doubled with each retry up to the maximum, then jitter."""

    base: float
    throttled_base: float
    max: float
    #: Full jitter: from zero to the delay. Otherwise: from half the delay to the delay, at least
    #: the base.
    full_jitter: bool = True

    def bound(self, retries: int, throttled: bool) -> float:
        base = self.throttled_base if throttled else self.base
        return float(min(base * 2 ** min(retries, 31), self.max))

    def jitter(self, bound: float, random: float) -> float:
        if self.full_jitter:
            return bound * random
        return max(bound * 0.5 * (1 + random), self.base)


@dataclass(frozen=True)
class Tokens:
    """The retry token bucket of AWS.

    A retry withdraws tokens, and a successful call returns those of its last retry.
    """

    max: int
    retry: int
    throttled: int
    refill: int


@dataclass(frozen=True)
class Throttle:
    """The retry throttle of gRPC, in thousandths of a token.

    Retries are allowed while more than half of the tokens are left.
    """

    max_milli: int
    refill_milli: int


#: ``"window"``: in 10 seconds, one retry per ten first attempts, plus 10 minus the number of first
#: attempts if that is positive. ``None``: no bound.
BudgetRule = Literal["window"] | Tokens | Throttle | None


class RetryBudget:
    """The retry budget of one client: bounds the load that retries add when a server fails."""

    def __init__(self, rule: BudgetRule) -> None:
        self._rule = rule
        self._tokens = 0
        if isinstance(rule, Tokens):
            self._tokens = rule.max
        elif isinstance(rule, Throttle):
            self._tokens = rule.max_milli
        # Of each second of the window: its number, first attempts, retries.
        self._window = [[0, 0, 0] for _ in range(WINDOW_SECONDS)]

    def on_first_attempt(self, now: float) -> None:
        if self._rule == "window":
            self._slot(now)[1] += 1

    def on_success(self, paid: int | None) -> None:
        rule = self._rule
        if isinstance(rule, Tokens):
            self._tokens = min(self._tokens + (rule.refill if paid is None else paid), rule.max)
        elif isinstance(rule, Throttle):
            self._tokens = min(self._tokens + rule.refill_milli, rule.max_milli)

    def on_failure(self) -> None:
        if isinstance(self._rule, Throttle):
            self._tokens = max(self._tokens - 1000, 0)

    def withdraw(self, now: float, throttled: bool) -> int | None:
        """Withdraws the cost of one retry and returns it; ``None`` if the budget is exhausted."""
        rule = self._rule
        if rule is None:
            return 0
        if isinstance(rule, Tokens):
            cost = rule.throttled if throttled else rule.retry
            if self._tokens < cost:
                return None
            self._tokens -= cost
            return cost
        if isinstance(rule, Throttle):
            return 0 if self._tokens > rule.max_milli // 2 else None
        second = int(now)
        recent = [slot for slot in self._window if second - slot[0] < WINDOW_SECONDS]
        first_attempts = sum(slot[1] for slot in recent)
        retries = sum(slot[2] for slot in recent)
        floor = max(WINDOW_SECONDS - first_attempts, 0) * 100
        if (retries + 1) * 100 > first_attempts * WINDOW_PERCENT + floor:
            return None
        self._slot(now)[2] += 1
        return 0

    def _slot(self, now: float) -> list[int]:
        second = int(now)
        slot = self._window[second % WINDOW_SECONDS]
        if slot[0] != second:
            slot[:] = [second, 0, 0]
        return slot


@dataclass
class RetryState:
    """State of one call between its attempts."""

    #: Attempts so far; attempts answered by "in progress" do not count.
    attempts: int = 1
    #: Exponent of the backoff; a push-back of the server resets it.
    retries: int = 0
    paid: int | None = None

    @classmethod
    def begin(cls, budget: RetryBudget, now: float) -> RetryState:
        """A call whose first attempt is sent now."""
        budget.on_first_attempt(now)
        return cls()


_Meaning = Literal["success", "refusal", "running", "retryable", "throttled", "refused"]


@dataclass(frozen=True)
class RetryPolicy:
    """How a client retries."""

    rule: Rule
    attempts_max: int
    backoff: Backoff
    #: Seconds for one call with all its attempts and delays; ``None`` for no limit.
    deadline: float | None
    budget: BudgetRule

    def with_deadline(self, deadline: float | None) -> RetryPolicy:
        """The same with another deadline for each call, in seconds."""
        return replace(self, deadline=deadline)

    def decide(
        self,
        call: RetryState,
        budget: RetryBudget,
        outcome: AttemptOutcome,
        *,
        now: float,
        elapsed: float,
        random: float,
    ) -> Decision:
        """Decides what to do after an attempt with this outcome."""
        meaning = self._meaning(outcome)
        if meaning in ("success", "refusal"):
            if meaning == "success":
                budget.on_success(call.paid)
            return Done()
        if meaning == "refused":
            budget.on_failure()
            return GiveUp("refused")
        waits = meaning == "running"
        if not waits:
            budget.on_failure()
            if call.attempts >= self.attempts_max:
                return GiveUp("attempts")
        delay = self._delay(call, outcome, meaning, random)
        if self.deadline is not None and elapsed + delay >= self.deadline:
            return GiveUp("deadline")
        if not waits:
            paid = budget.withdraw(now, meaning == "throttled")
            if paid is None:
                return GiveUp("budget")
            call.paid = paid
            call.attempts += 1
        call.retries += 1
        if self._pushback(outcome) is not None:
            call.retries = 0
        return Wait(delay)

    def _delay(
        self, call: RetryState, outcome: AttemptOutcome, meaning: _Meaning, random: float
    ) -> float:
        bound = self.backoff.bound(call.retries, meaning == "throttled")
        if meaning == "running":
            bound = min(bound, WAIT_BACKOFF_MAX)
        own = self.backoff.jitter(bound, random)
        if not isinstance(outcome, ResponseSignals):
            return own
        if self.rule == "semel":
            return own + (outcome.retry_after or 0)
        if self.rule == "aws" and outcome.aws_retry_after is not None:
            return min(max(outcome.aws_retry_after, own), own + AWS_RETRY_AFTER_SPAN)
        pushback = self._pushback(outcome)
        return own if pushback is None else pushback

    def _pushback(self, outcome: AttemptOutcome) -> float | None:
        if self.rule != "grpc" or not isinstance(outcome, ResponseSignals):
            return None
        asked = outcome.grpc_pushback
        return None if asked is None or math.isinf(asked) else asked

    def _meaning(self, outcome: AttemptOutcome) -> _Meaning:
        if not isinstance(outcome, ResponseSignals):
            return "retryable"
        done: _Meaning = "success" if outcome.status < 400 else "refusal"
        failed: _Meaning = "throttled" if outcome.status == 429 else "retryable"
        if self.rule == "semel":
            return _semel(outcome, done, failed)
        if self.rule == "aws":
            return failed if outcome.status in (429, 500, 502, 503, 504) else done
        if self.rule == "stripe":
            asked = outcome.stripe_should_retry
            if asked is None:
                asked = outcome.status == 409 or outcome.status >= 500
            return "retryable" if asked else done
        return _grpc(outcome)


def _semel(signals: ResponseSignals, done: _Meaning, failed: _Meaning) -> _Meaning:
    locked = signals.status in (409, 423)
    asked = signals.x_should_retry
    if asked is None:
        asked = signals.stripe_should_retry
    if signals.status < 400 or asked is False:
        return done
    if asked:
        return "running" if locked else failed
    if locked and signals.retry_after is not None:
        return "running"
    return failed if signals.status in (408, 425, 429, 500, 502, 503, 504) else done


def _grpc(signals: ResponseSignals) -> _Meaning:
    unavailable = (
        signals.status in (429, 502, 503, 504)
        if signals.grpc_status is None
        else signals.grpc_status == 14
    )
    if not unavailable:
        return "success" if signals.grpc_status == 0 else "refusal"
    if signals.grpc_pushback is not None and math.isinf(signals.grpc_pushback):
        return "refused"
    return "retryable"


def _boolean(text: str | None) -> bool | None:
    return {"true": True, "false": False}.get(text or "")


def _number(text: str | None) -> int | None:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > DIGITS_MAX:
        return None
    return int(text)


def _delay(text: str | None, unix_seconds: int) -> float | None:
    """A ``Retry-After``: seconds or an HTTP date."""
    if text is None:
        return None
    seconds = _number(text)
    if seconds is not None:
        return float(seconds)
    date = email.utils.parsedate(text) if text.endswith(" GMT") else None
    if date is None:
        return None
    return float(max(calendar.timegm((*date[:6], 0, 0, 0)) - unix_seconds, 0))


_FAST = Backoff(base=0.05, throttled_base=1.0, max=20.0)

#: Semel's own policy.
SEMEL = RetryPolicy("semel", attempts_max=5, backoff=_FAST, deadline=60.0, budget="window")

#: AWS's SDKs, retry mode ``standard`` of 2026.
AWS = RetryPolicy(
    "aws",
    attempts_max=3,
    backoff=_FAST,
    deadline=None,
    budget=Tokens(max=500, retry=14, throttled=5, refill=1),
)

#: Stripe's SDKs: two retries, half a second to five, no budget.
STRIPE = RetryPolicy(
    "stripe",
    attempts_max=3,
    backoff=Backoff(base=0.5, throttled_base=0.5, max=5.0, full_jitter=False),
    deadline=None,
    budget=None,
)

#: gRPC with the numbers of proposal A6.
GRPC = RetryPolicy(
    "grpc",
    attempts_max=4,
    backoff=Backoff(base=0.1, throttled_base=0.1, max=1.0),
    deadline=None,
    budget=Throttle(max_milli=10_000, refill_milli=100),
)

PRESETS: dict[str, RetryPolicy] = {"semel": SEMEL, "aws": AWS, "stripe": STRIPE, "grpc": GRPC}
