"""FastAPI. GET /hits says how often the handler ran."""

from fastapi import FastAPI

app = FastAPI()
hits = 0


@app.post("/webhooks/stripe")
async def handle():
    global hits
    hits += 1
    return "handled"


@app.get("/hits")
async def count():
    return hits
