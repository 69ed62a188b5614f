// Charges some customers, one key each, and says what came of it: a line of JSON for each.
//
// usage: axios_retry.js URL COUNT
const axios = require("axios");
const { default: axiosRetry } = require("axios-retry");

const [url, count] = [process.argv[2], Number(process.argv[3])];
const http = axios.create({ timeout: 30_000, responseType: "arraybuffer", proxy: false });
axiosRetry(http, {
  retries: 5,
  retryDelay: axiosRetry.exponentialDelay,
  // It does not repeat a POST by itself. With a key it may: when no answer came, when one broke off
  // (which has a status, and it is 201), and when the status says that it is worth it.
  retryCondition: ({ response }) =>
    !response || response.status < 300 || [409, 502, 503, 504].includes(response.status),
});

async function main() {
  for (let number = 0; number < count; number += 1) {
    const key = `key-${number}`;
    const answer = await http.post(
      `${url}/charges`,
      { customer: key, amount: number },
      { headers: { "Idempotency-Key": key } },
    );
    const line = {
      key,
      status: answer.status,
      replayed: answer.headers["idempotent-replayed"] ?? null,
      tries: 1 + (answer.config["axios-retry"]?.retryCount ?? 0),
      body: Buffer.from(answer.data).toString("hex"),
    };
    console.log(JSON.stringify(line));
  }
}

main();
