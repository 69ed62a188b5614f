"""Charges a card and then fails, or answers before the card is charged.

GET /ledger says how many charges were made and how many requests still run.
"""

import asyncio
import threading
import time

from fastapi import FastAPI, HTTPException

LIMIT = 0.2  # seconds until a slow request is answered
CARD_NETWORK = 0.6  # seconds until the card network has charged

app = FastAPI()
ledger = {"charges": 0, "running": 0}
lock = threading.Lock()


def add(name, number):
    with lock:
        ledger[name] += number


def charge_slowly():
    try:
        time.sleep(CARD_NETWORK)
        add("charges", 1)
    finally:
        add("running", -1)


@app.post("/raise", status_code=201)
async def charge_and_raise():
    add("charges", 1)
    raise RuntimeError("the receipt could not be mailed")


@app.post("/slow", status_code=201)
async def charge_over_the_limit():
    add("running", 1)
    work = asyncio.get_running_loop().run_in_executor(None, charge_slowly)
    try:
        await asyncio.wait_for(work, LIMIT)
    except asyncio.TimeoutError:  # the thread goes on
        raise HTTPException(503, "the card network is slow")


@app.get("/ledger")
async def read_ledger():
    return ledger
