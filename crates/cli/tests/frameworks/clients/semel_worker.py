"""A worker that runs each of its messages once.

Reads {"messages": [ID, ...], "on_unknown": TEXT, "runs": FILE, "finished": FILE} from standard input. Each
run appends its message and its fence to one file; the other one has the messages that are held.
"""

import json
import os
import sys
import time

import semel

WANTED = json.load(sys.stdin)
SERVICE = semel.Semel(
    os.environ["SEMEL_API"],
    scope="messages",
    token=os.environ["SEMEL_TOKEN"],
    on_unknown=WANTED["on_unknown"],
)


def run(message, fence):
    with open(WANTED["runs"], "ab", buffering=0) as runs:
        runs.write(f"{message} {fence}\n".encode())
    time.sleep(0.02)


def main():
    held = []
    for message in WANTED["messages"]:
        try:
            with SERVICE.once(message, lease="2s") as claimed:
                if claimed.claim is not None:
                    run(message, claimed.claim.fence)
        except semel.OutcomeUnknown:
            held.append(message)
    with open(WANTED["finished"], "w") as finished:
        finished.write("".join(f"{message}\n" for message in held))


main()
