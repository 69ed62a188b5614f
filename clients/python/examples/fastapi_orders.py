"""An API on FastAPI that creates each order once: ``uvicorn fastapi_orders:app``."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse

import semel

app = FastAPI()
service = semel.AsyncSemel(
    os.environ["SEMEL_API"], scope="orders", token=os.environ["SEMEL_TOKEN"]
)
orders: list[Any] = []


async def once(
    request: Request,
    idempotency_key: Annotated[str, Header()],
    # What your authentication says. Keys of different users must not meet.
    x_user: Annotated[str, Header()],
) -> AsyncIterator[semel.AsyncRun]:
    key = semel.derive_key("orders", x_user, idempotency_key)
    async with service.once(key, payload=await request.json()) as run:
        yield run


# With the scope "function" the result is recorded before the response is sent.
Once = Annotated[semel.AsyncRun, Depends(once, scope="function")]


@app.post("/orders", status_code=201)
async def create_order(run: Once, request: Request) -> Any:
    if run.replayed:
        return run.result
    order = await request.json()
    if order["amount"] < 0:
        # Nothing was done: the same key may come again.
        raise semel.Retry("the amount is negative")
    if order["item"] == "crash":
        raise ConnectionResetError("the warehouse did not answer")
    orders.append(order)
    run.result = {"order": len(orders)}
    return run.result


@app.exception_handler(semel.Retry)
async def refused(_: Request, error: semel.Retry) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, status_code=400)


@app.exception_handler(semel.Problem)
async def problem(_: Request, error: semel.Problem) -> JSONResponse:
    document = {"type": f"urn:semel:problem:{error.slug}", "detail": error.detail}
    return JSONResponse(document, error.status, media_type="application/problem+json")


@app.get("/orders")
async def list_orders() -> Any:
    return orders
