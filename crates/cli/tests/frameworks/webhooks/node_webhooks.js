// Express 4 or 5 with a route or a mounted handler, or no framework but the URL class of the web.
//
// node node_webhooks.js express4|express5|express5-mounted|url
// GET /hits says how often the handler ran.
const http = require("node:http");

let hits = 0;

const handle = (request, response) => {
  hits += 1;
  response.end("handled");
};
const count = (request, response) => response.end(String(hits));

function withExpress(express, mounted) {
  const app = express();
  if (mounted) app.use("/webhooks/stripe", handle);
  else app.post("/webhooks/stripe", handle);
  return app.get("/hits", count);
}

function byUrl(request, response) {
  const { pathname } = new URL(request.url, "http://127.0.0.1");
  if (request.method === "POST" && pathname === "/webhooks/stripe") return handle(request, response);
  if (pathname === "/hits") return count(request, response);
  response.writeHead(404).end();
}

const listeners = {
  express4: () => withExpress(require("express4"), false),
  express5: () => withExpress(require("express"), false),
  "express5-mounted": () => withExpress(require("express"), true),
  url: () => byUrl,
};

const server = http.createServer(listeners[process.argv[2]]());
server.listen(0, "127.0.0.1", () => {
  console.error(`running on http://127.0.0.1:${server.address().port}`);
});
