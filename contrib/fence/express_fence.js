// Refuses the writes of a zombie: an attempt that a later one has replaced.

// For `pg`, write $1 and $2 instead of ?.
const CLAIM = `
INSERT INTO operation_fence (operation, fence) VALUES (?, ?)
ON CONFLICT (operation) DO UPDATE SET fence = excluded.fence
WHERE operation_fence.fence <= excluded.fence`;

class StaleFence extends Error {}

// Call it first in the transaction that writes. The operation names what is written, and `run`
// executes a statement in that transaction and returns the number of changed rows.
async function claimFence(run, operation, request) {
  const fence = request.get("Idempotency-Fence");
  if (!/^[0-9]+$/.test(fence ?? "")) throw new Error("this request needs Idempotency-Fence");
  if ((await run(CLAIM, [operation, fence])) === 0) throw new StaleFence(operation);
}

// Answers 409 where a handler was refused: app.use(refuseStaleFences), after the routes. The answer
// is not recorded.
function refuseStaleFences(error, request, response, next) {
  if (!(error instanceof StaleFence)) return next(error);
  response.set("Idempotency-Outcome", "unknown").status(409);
  response.json({ detail: "a later attempt of this operation has written already" });
}

module.exports = { StaleFence, claimFence, refuseStaleFences };
