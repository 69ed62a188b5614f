import sqlite3
import threading

from fastapi import FastAPI, Request
from fastapi_fence import claim_fence, refuse_stale_fences
from pydantic import BaseModel

app = FastAPI()
refuse_stale_fences(app)

database = sqlite3.connect(":memory:", check_same_thread=False)
database.execute("CREATE TABLE operation_fence (operation text PRIMARY KEY, fence bigint NOT NULL)")
database.execute("CREATE TABLE charge (customer text, amount bigint, attempt bigint)")
one_at_a_time = threading.Lock()
gate = threading.Event()


class Charge(BaseModel):
    customer: str
    amount: int


@app.post("/charges", status_code=201)
def charge(wanted: Charge, request: Request):
    attempt = int(request.headers["Idempotency-Attempt"])
    if attempt == 1:
        gate.wait()  # this attempt is paused for longer than anyone waits for it
    with one_at_a_time, database as transaction:
        claim_fence(transaction, f"charge {wanted.customer}", request)
        row = (wanted.customer, wanted.amount, attempt)
        transaction.execute("INSERT INTO charge VALUES (?, ?, ?)", row)
    return {"customer": wanted.customer, "attempt": attempt}


@app.middleware("http")
async def count(request: Request, call_next):
    response = await call_next(request)
    if response.status_code == 409:
        refused.append(request.url.path)
    return response


refused = []


@app.get("/ledger")
def ledger():
    with one_at_a_time:
        attempts = [row[0] for row in database.execute("SELECT attempt FROM charge")]
    return {"attempts": attempts, "refused": len(refused)}


@app.get("/open-gate")
def open_gate():
    gate.set()
    return {}
