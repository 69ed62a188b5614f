// An API on Express that creates each order once: node express_orders.cjs.

const express = require("express");

/** A handler that runs once for each key of a user; what it returns is recorded and replayed. */
function once(semel, service, handler) {
  return async (request, response, next) => {
    try {
      // What your authentication says. Keys of different users must not meet.
      const user = request.get("x-user");
      const idempotencyKey = request.get("idempotency-key");
      if (!user || !idempotencyKey) return response.status(400).end();
      const key = await semel.deriveKey("orders", user, idempotencyKey);
      const run = () => handler(request);
      const { status, body } = await service.once(key, run, { payload: request.body });
      response.status(status).json(body);
    } catch (error) {
      if (!(error instanceof semel.Problem)) return next(error);
      const document = { type: `urn:semel:problem:${error.slug}`, detail: error.detail };
      response.status(error.status).type("application/problem+json").send(document);
    }
  };
}

async function main() {
  const semel = await import(process.env.SEMEL_MODULE ?? "semel");
  const service = new semel.Semel(process.env.SEMEL_API, {
    scope: "orders",
    token: process.env.SEMEL_TOKEN,
  });
  const orders = [];
  const app = express();
  app.use(express.json());
  app.post(
    "/orders",
    once(semel, service, async ({ body: order }) => {
      // Nothing was done: the same key may come again.
      if (order.amount < 0) throw new semel.Retry("the amount is negative");
      if (order.item === "crash") throw new Error("the warehouse did not answer");
      orders.push(order);
      return { status: 201, body: { order: orders.length } };
    }),
  );
  app.get("/orders", (_, response) => response.json(orders));
  app.use((error, request, response, next) => {
    if (error instanceof semel.Retry) return response.status(400).json({ detail: error.message });
    next(error);
  });
  const server = app.listen(Number(process.env.PORT ?? 0), "127.0.0.1", () => {
    console.error(`on http://127.0.0.1:${server.address().port}`);
  });
}

main();
