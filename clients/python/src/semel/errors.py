"""What a program that uses the service API may meet."""

from __future__ import annotations

from typing import Any


class SemelError(Exception):
    """Every error of this package."""


class Retry(SemelError):
    """Raise it in an operation that did not happen: its key is released and may run again."""


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
    """Another attempt runs, and it did not end in time. Ask again with the same key."""


class OutcomeUnknown(Problem):
    """An earlier attempt began and its end is unknown. Nothing runs until an operator resolves it."""


class KeyReused(Problem):
    """The key belongs to another payload."""


class OperationFailed(Problem):
    """An earlier attempt counts as failed, by ``on_unknown = "fail"``."""


class Lost(Problem):
    """The claim has another owner by now: the operation may run there."""


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
