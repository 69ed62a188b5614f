// Places orders, each once, in transactions of node-postgres.
//
// Reads {"url": URL, "orders": [KEY, ...], "kill_after": NUMBER or null} from standard input, and writes
// one line for each order: {"key": KEY, "order": NUMBER}. `kill_after` is the number of statements after
// which the process kills itself.

const { readFileSync, writeSync } = require("node:fs");
const { setTimeout: sleep } = require("node:timers/promises");
const { Pool } = require("pg");

class NotNow extends Error {}

async function placeOrder(pool, shop, key, order) {
  const client = await pool.connect();
  let failed = true;
  try {
    await client.query("BEGIN");
    const { rows: [begun] } = await client.query(
      "SELECT * FROM semel_begin('orders', $1, $2, sha256(convert_to($3, 'UTF8')))",
      [shop, key, JSON.stringify(order)],
    );
    let result = begun.result && JSON.parse(begun.result);
    if (begun.outcome === "execute") {
      const insert = "INSERT INTO orders (item) VALUES ($1) RETURNING id::int";
      result = { order: (await client.query(insert, [order.item])).rows[0].id };
      await client.query("SELECT semel_record($1, $2)", [begun.claim, JSON.stringify(result)]);
    } else if (begun.outcome !== "replay") {
      throw new NotNow(begun.outcome); // 409 for in-progress, 422 for key-reused
    }
    await client.query("COMMIT");
    failed = false;
    return result;
  } finally {
    // Closes the connection after a failure: the server rolls the transaction back.
    client.release(failed);
  }
}

async function main() {
  const wanted = JSON.parse(readFileSync(0, "utf8"));
  const pool = new Pool({ connectionString: wanted.url, max: 1 });
  pool.on("error", () => {});
  let statements = 0;
  const count = () => {
    statements += 1;
    if (statements === wanted.kill_after) process.kill(process.pid, "SIGKILL");
  };
  pool.on("connect", (client) => {
    client.on("error", () => {});
    const query = client.query.bind(client);
    client.query = async (sql, values) => {
      const answer = await query(sql, values);
      if (sql !== "BEGIN") count();
      return answer;
    };
  });
  for (const key of wanted.orders) {
    for (;;) {
      try {
        const done = await placeOrder(pool, "shop-3", key, { item: `item of ${key}` });
        writeSync(1, `${JSON.stringify({ key, ...done })}\n`);
        break;
      } catch (error) {
        const isKnown = error instanceof NotNow || error.code || /terminated/.test(error.message);
        if (!isKnown) throw error;
        await sleep(20);
      }
    }
  }
  await pool.end();
}

main();
