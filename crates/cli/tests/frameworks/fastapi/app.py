import asyncio

from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()
charges = []


class Charge(BaseModel):
    customer: str
    amount: int


@app.post("/charges", status_code=201)
async def charge(wanted: Charge):
    await asyncio.sleep(0.1)  # the card network
    made = {"id": f"ch_{len(charges) + 1}", **wanted.model_dump()}
    charges.append(made)
    return made


@app.get("/charges")
async def ledger():
    return charges
