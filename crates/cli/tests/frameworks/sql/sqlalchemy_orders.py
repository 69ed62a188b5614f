"""Places orders, each once, in transactions of SQLAlchemy.

Reads {"url": URL, "orders": [KEY, ...], "kill_after": NUMBER or null} from standard input, and writes one
line for each order: {"key": KEY, "order": NUMBER}. `kill_after` is the number of statements after which
the process kills itself.
"""

import json
import os
import signal
import sys
import time
from hashlib import sha256
from json import dumps, loads

from sqlalchemy import create_engine, event, exc, text

BEGIN = text("SELECT * FROM semel_begin('orders', :shop, :key, :fingerprint)")
RECORD = text("SELECT semel_record(:claim, :result)")


class NotNow(Exception):
    """Answered with 409: the same request runs. `key-reused` is answered with 422."""


def place_order(engine, shop, key, order):
    meaning = dumps(order, sort_keys=True, separators=(",", ":"))
    fingerprint = sha256(meaning.encode()).digest()
    with engine.begin() as transaction:
        begun = transaction.execute(
            BEGIN, {"shop": shop, "key": key, "fingerprint": fingerprint}
        ).one()
        if begun.outcome == "replay":
            return loads(begun.result)
        if begun.outcome != "execute":
            raise NotNow(begun.outcome)
        insert = text("INSERT INTO orders (item) VALUES (:item) RETURNING id")
        result = {"order": transaction.execute(insert, order).scalar_one()}
        transaction.execute(RECORD, {"claim": begun.claim, "result": dumps(result)})
    return result


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def main():
    wanted = json.load(sys.stdin)
    url = wanted["url"].replace("postgres://", "postgresql+psycopg://")
    engine = create_engine(url, pool_pre_ping=True)
    statements = 0

    def count(*_):
        nonlocal statements
        statements += 1
        if statements == wanted["kill_after"]:
            kill()

    event.listen(engine, "after_cursor_execute", count)
    for key in wanted["orders"]:
        while True:
            try:
                done = place_order(engine, "shop-3", key, {"item": f"item of {key}"})
                break
            except (NotNow, exc.DBAPIError):
                time.sleep(0.02)
        count()
        print(json.dumps({"key": key, **done}), flush=True)


main()
