"""The vectors that the clients of all languages pass."""

from __future__ import annotations

import json
import unittest
import uuid
from pathlib import Path
from typing import Any

from semel import keys
from semel.retry import (
    PRESETS,
    AttemptOutcome,
    Decision,
    Done,
    GiveUp,
    ResponseSignals,
    RetryBudget,
    RetryState,
)

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors.json").read_text(encoding="utf-8")
)


def outcome_of(vector: Any) -> AttemptOutcome:
    if vector in ("not_sent", "broken", "timed_out"):
        outcome: AttemptOutcome = vector
        return outcome
    headers: dict[str, str] = vector["headers"]
    return ResponseSignals.read(vector["status"], headers.get, VECTORS["unix_seconds"])


def shown(decision: Decision) -> dict[str, Any]:
    if isinstance(decision, Done):
        return {"decision": "done"}
    if isinstance(decision, GiveUp):
        return {"decision": "give_up", "reason": decision.reason}
    return {"decision": "wait", "wait_us": int(decision.delay * 1e6 + 1e-3)}


class Vectors(unittest.TestCase):
    def test_retries(self) -> None:
        self.assertGreaterEqual(len(VECTORS["scripts"]), 60)
        for script in VECTORS["scripts"]:
            policy = PRESETS[script["preset"]]
            budget = RetryBudget(policy.budget)
            calls: dict[int, tuple[RetryState, float]] = {}
            for number, step in enumerate(script["steps"]):
                now = step["now_ms"] / 1000
                if step.get("begin"):
                    calls[step["call"]] = (RetryState.begin(budget, now), now)
                    continue
                state, began = calls[step["call"]]
                decision = policy.decide(
                    state,
                    budget,
                    outcome_of(step["outcome"]),
                    now=now,
                    elapsed=now - began,
                    random=step["random"],
                )
                self.assertEqual(shown(decision), step["expect"], (script["name"], number))

    def test_keys(self) -> None:
        for vector in VECTORS["keys"]:
            parts = vector["parts"]
            self.assertEqual(keys.derive_key(vector["domain"], *parts), vector["key"])
            namespace = uuid.UUID(vector["namespace"])
            self.assertEqual(keys.derive_uuid(namespace, *parts), vector["uuid"])

    def test_fingerprints(self) -> None:
        for vector in VECTORS["fingerprints"]:
            made = keys.fingerprint(vector["domain"], *vector["parts"])
            self.assertEqual(made, vector["sha256"])

    def test_time_ordered_keys_rise(self) -> None:
        made = [keys.time_ordered_key() for _ in range(10_000)]
        self.assertEqual(made, sorted(set(made)))
        self.assertEqual({uuid.UUID(key).version for key in made}, {7})
