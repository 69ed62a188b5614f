const express = require("express");
const initSqlJs = require("sql.js");
const { claimFence, refuseStaleFences } = require(process.env.HELPER);

async function main() {
  const database = new (await initSqlJs()).Database();
  database.run("CREATE TABLE operation_fence (operation text PRIMARY KEY, fence bigint NOT NULL)");
  database.run("CREATE TABLE charge (customer text, attempt bigint)");
  const run = (sql, values) => {
    database.run(sql, values);
    return database.getRowsModified();
  };
  let open;
  const gate = new Promise((resolve) => (open = resolve));
  let refused = 0;
  const app = express();

  app.post("/charges", express.json(), async (request, response) => {
    const { customer } = request.body;
    const attempt = Number(request.get("Idempotency-Attempt"));
    if (attempt === 1) await gate; // this attempt is paused for longer than anyone waits for it
    run("BEGIN", []);
    try {
      await claimFence(run, `charge ${customer}`, request);
      run("INSERT INTO charge VALUES (?, ?)", [customer, attempt]);
      run("COMMIT", []);
    } catch (error) {
      run("ROLLBACK", []);
      refused += 1;
      throw error;
    }
    response.status(201).json({ customer, attempt });
  });

  app.get("/ledger", (request, response) => {
    const [found] = database.exec("SELECT attempt FROM charge");
    const attempts = found ? found.values.flat() : [];
    response.json({ attempts, refused });
  });

  app.get("/open-gate", (request, response) => {
    open();
    response.json({});
  });

  app.use(refuseStaleFences);
  const server = app.listen(0, "127.0.0.1", () => {
    console.error(`running on http://127.0.0.1:${server.address().port}`);
  });
}

main();
