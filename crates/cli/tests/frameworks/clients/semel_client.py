"""Makes calls with Semel's client for Python, and says what came of each: a line of JSON.

Reads {"url": URL, "calls": [{"path": PATH, "timeout": SECONDS, "body": TEXT}, ...], "async": BOOL} from
standard input. Each call has a client of its own, with a retry budget of its own.
"""

import asyncio
import json
import sys

import semel

WANTED = json.load(sys.stdin)
HEADERS = {"content-type": "application/json"}


def show(call, answer):
    line = {"path": call["path"], "status": answer.status_code, "body": answer.text}
    # In one piece, because other calls write too.
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def run(call):
    with semel.Client(timeout=call["timeout"]) as client:
        url = f"{WANTED['url']}/{call['path']}"
        show(call, client.post(url, content=call["body"], headers=HEADERS))


async def run_async(call):
    async with semel.AsyncClient(timeout=call["timeout"]) as client:
        url = f"{WANTED['url']}/{call['path']}"
        show(call, await client.post(url, content=call["body"], headers=HEADERS))


async def run_all():
    await asyncio.gather(*(run_async(call) for call in WANTED["calls"]))


if WANTED["async"]:
    asyncio.run(run_all())
else:
    for call in WANTED["calls"]:
        run(call)
