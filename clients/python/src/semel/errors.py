"""The errors of the client of the service API."""

from __future__ import annotations

from typing import Any


class SemelError(Exception):
    """Base class of all errors of this package."""


class Retry(SemelError):
    """Raise it in an operation that did not happen.

    The key is released, and the next attempt runs the operation.
    """


class Refused(SemelError):
    """Raise it in an operation whose refusal is final: ``value`` is recorded, and every repeat
    raises the same again."""

    def __init__(self, value: Any = None) -> None:
        super().__init__(value)
        self.value = value


class Problem(SemelError):
    """The service answered with a problem document."""

    def __init__(self, status: int, slug: str, detail: str) -> None:
        super().__init__(f"{status} {slug}: {detail}")
        self.status = status
        #: The last part of its ``type``, such as ``key-reused``.
        self.slug = slug
        self.detail = detail


class InProgress(Problem):
    """Another attempt is still running. Retry with the same key."""


class OutcomeUnknown(Problem):
    """An earlier attempt began and its end is unknown. Nothing runs until an operator resolves it."""


class KeyReused(Problem):
    """The key belongs to another payload."""


class OperationFailed(Problem):
    """An earlier attempt counts as failed, by ``on_unknown = "fail"``."""


class Lost(Problem):
    """The claim has another owner, was released or resolved, or has another result."""


class NotRetained(SemelError):
    """The operation was done, and its result is not stored."""


PROBLEMS: dict[str, type[Problem]] = {
    "in-progress": InProgress,
    "outcome-unknown": OutcomeUnknown,
    "key-reused": KeyReused,
    "operation-failed": OperationFailed,
    "claim-lost": Lost,
    "result-differs": Lost,
}
