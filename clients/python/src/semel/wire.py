"""The calls of the service API as values, without I/O: shared by the sync and the async client."""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from .errors import PROBLEMS, NotRetained, Problem, Refused

OnUnknown = Literal["hold", "rerun", "fail"]

#: The content type of a result that every repeat raises as :class:`Refused`.
REFUSED_TYPE = "application/vnd.semel.refused+json"


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


#: No payload: the key alone identifies the operation. ``None`` is the JSON value ``null``.
ABSENT: Any = _Absent()


@dataclass(frozen=True)
class Options:
    """How keys are claimed."""

    scope: str
    on_unknown: OnUnknown = "hold"
    #: Durations are texts such as ``"30s"`` and ``"7d"``; by default those of the scope.
    lease: str | None = None
    wait: str | None = None
    retention: str | None = None
    #: A description for operators.
    about: str | None = None
    #: The caller whose key it is, where the token may name one.
    caller: str | None = None


@dataclass(frozen=True)
class Granted:
    """The operation is to run."""

    claim: str
    fence: int
    attempt: int
    #: Seconds.
    lease: float


@dataclass(frozen=True)
class Replayed:
    """The operation was done, with this result."""

    content_type: str
    body: Any
    retained: bool

    def value(self) -> Any:
        """The result; raises :class:`Refused` where it was a refusal."""
        if not self.retained:
            raise NotRetained("the operation was done, and its result is not stored")
        if self.content_type == REFUSED_TYPE:
            raise Refused(self.body)
        return self.body


def claim_body(key: str, options: Options, payload: Any, fingerprint: str | None) -> dict[str, Any]:
    """A claim. Its repeats are the same bytes: ``attempt_id`` is drawn here."""
    body: dict[str, Any] = {
        "scope": options.scope,
        "key": key,
        "attempt_id": secrets.token_hex(16),
        "on_unknown": options.on_unknown,
    }
    optional = {
        "lease": options.lease,
        "wait": options.wait,
        "retention": options.retention,
        "about": options.about,
        "caller": options.caller,
        "fingerprint": fingerprint,
    }
    body.update({name: value for name, value in optional.items() if value is not None})
    if payload is not ABSENT:
        body["payload"] = payload
    return body


def result_body(claim: str, value: Any, content_type: str | None = None) -> dict[str, Any]:
    """A completion: bytes are recorded as they are, anything else as JSON."""
    result: dict[str, Any]
    if isinstance(value, bytes):
        result = {"body_base64": base64.b64encode(value).decode()}
    else:
        result = {"body": value}
    if content_type is not None:
        result["content_type"] = content_type
    return {"claim": claim, "result": result}


def encode(body: Any) -> bytes:
    """JSON without white space; NaN has none."""
    text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()


def decode(response: httpx.Response) -> dict[str, Any]:
    """The body of a success; raises the problem otherwise."""
    try:
        body = response.json()
    except ValueError:
        body = None
    document: dict[str, Any] = body if isinstance(body, dict) else {}
    if response.status_code == 200 and "outcome" in document:
        return document
    slug = str(document.get("type", "")).rpartition(":")[2] or "unexpected-answer"
    kind = PROBLEMS.get(slug, Problem)
    raise kind(response.status_code, slug, str(document.get("detail", response.reason_phrase)))


def claimed(document: dict[str, Any]) -> Granted | Replayed:
    """The answer to a claim."""
    if document["outcome"] == "execute":
        lease = document["lease_ms"] / 1000
        return Granted(document["claim"], document["fence"], document["attempt"], lease)
    result: dict[str, Any] = document.get("result", {})
    body = result.get("body")
    if "body_base64" in result:
        body = base64.b64decode(result["body_base64"])
    return Replayed(result.get("content_type", ""), body, document.get("retained", False))


def unknown_call(claim: str, options: Options, error: BaseException) -> tuple[str, Any] | None:
    """What an operation with an unknown outcome sends: a path and a body, or nothing, which lets
    the lease end."""
    reason = f"{type(error).__name__} in the operation"[:120]
    if options.on_unknown == "hold":
        return "hold", {"claim": claim, "reason": reason}
    if options.on_unknown == "rerun":
        return "release", {"claim": claim, "counted": True, "reason": reason}
    return None
