"""A consumer that runs each message of its input once: one JSON message a line, with an id.

A broker delivers at least once, so a message may come twice, at two consumers at the same time, or
again after a crash in its middle.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import semel

service = semel.Semel(
    os.environ["SEMEL_API"],
    scope="messages",
    token=os.environ["SEMEL_TOKEN"],
    # What a crash has interrupted runs again, with a higher fence.
    on_unknown="rerun",
)


def handle(message: dict[str, Any], fence: int) -> None:
    # Write the fence with everything in your own database, and refuse a lower one there.
    print(f"ran {message['id']} {fence}", flush=True)


def consume(message: dict[str, Any]) -> str:
    """What the broker is to be answered."""
    try:
        with service.once(message["id"], lease=os.environ.get("LEASE", "30s")) as run:
            if run.claim is not None:
                handle(message, run.claim.fence)
        return "ack"
    except semel.InProgress:
        # Another consumer has it. The broker delivers it again, should that one crash.
        return "nack"


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        print(f"{consume(message)} {message['id']}", flush=True)


if __name__ == "__main__":
    main()
