"""Refuses the writes of a zombie: an attempt that a later one has replaced."""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

# For psycopg, write %s instead of ?.
CLAIM = """
INSERT INTO operation_fence (operation, fence) VALUES (?, ?)
ON CONFLICT (operation) DO UPDATE SET fence = excluded.fence
WHERE operation_fence.fence <= excluded.fence
"""


class StaleFence(Exception):
    """A later attempt of the operation has written already."""


def claim_fence(transaction, operation: str, request: Request) -> None:
    """Call it first in the transaction that writes. The operation names what is written."""
    fence = int(request.headers["Idempotency-Fence"])
    if transaction.execute(CLAIM, (operation, fence)).rowcount == 0:
        raise StaleFence(operation)


def refuse_stale_fences(app: FastAPI) -> None:
    """Answers 409 where a handler was refused. The answer is not recorded."""

    @app.exception_handler(StaleFence)
    async def refuse(request: Request, error: StaleFence) -> JSONResponse:
        body = {"detail": "a later attempt of this operation has written already"}
        return JSONResponse(body, status_code=409, headers={"Idempotency-Outcome": "unknown"})
