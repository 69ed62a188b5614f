// Starts the app on any free port and says which; the keep-alive is another one where asked for.
const { server } = require("./app.js");

if (process.env.KEEP_ALIVE_SECONDS) {
  server.keepAliveTimeout = Number(process.env.KEEP_ALIVE_SECONDS) * 1000;
  server.keepAliveTimeoutBuffer = 0; // newer versions add a second
}
server.on("listening", () => {
  console.error(`running on http://127.0.0.1:${server.address().port}`);
});
