// What an operator does at 3 a.m., in Chromium. It reads its settings as JSON from standard input
// and writes what it found wrong as one line of JSON.
//
// With SEMEL_SCREENSHOTS=FOLDER it keeps pictures of the pages; those in docs/images come from it.

import { readFileSync } from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";

const input = JSON.parse(readFileSync(0, "utf8"));
const require = createRequire(`${input.modules}/`);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const AXE_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
const SIZES = { wide: { width: 1280, height: 860 }, small: { width: 360, height: 740 } };
const PREFIX = "/ops/semel";

const findings = [];
let checked = 0;

function expect(condition, what) {
  if (!condition) throw new Error(`not true: ${what}`);
}

async function charge(key, order = key) {
  const response = await fetch(`${input.gateway}/charges`, {
    method: "POST",
    headers: { "content-type": "application/json", "idempotency-key": key },
    body: JSON.stringify({ order }),
  });
  return { status: response.status, text: await response.text() };
}

// A proxy that serves the dashboard under a path prefix, as an operations portal does.
function serveUnderPrefix() {
  const api = new URL(input.api);
  const server = http.createServer((request, response) => {
    if (!request.url.startsWith(`${PREFIX}/`)) return response.writeHead(404).end();
    const upstream = http.request({
      host: api.hostname,
      port: api.port,
      method: request.method,
      path: request.url.slice(PREFIX.length),
      headers: { ...request.headers, host: "localhost" },
    }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    upstream.on("error", () => response.destroy());
    response.on("close", () => upstream.destroy());
    request.pipe(upstream);
  });
  return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(server)));
}

// A page of a fresh browser profile, whose console and requests are watched.
async function open(browser, base, options = {}) {
  const context = await browser.newContext({ viewport: SIZES.wide, ...options });
  const page = await context.newPage();
  const note = (kind, text) => findings.push(`${kind} on ${page.url()}: ${text}`);
  page.on("console", (message) => note("console", message.text()));
  page.on("pageerror", (error) => note("error", error.message));
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(`${base}/`) && !url.startsWith("data:")) note("foreign request", url);
  });
  page.setDefaultTimeout(30000);
  return page;
}

async function signIn(page, base, token, user) {
  await page.goto(`${base}/sign-in`);
  await page.fill("#user", user);
  await page.fill("#token", token);
  await page.click("main button");
}

async function text(page) {
  return page.locator("main").innerText();
}

// Looks at one page with axe, and for anything that does not fit.
async function check(page, name) {
  await page.evaluate(axe);
  const result = await page.evaluate((rules) => axe.run(document, { runOnly: rules }), AXE_RULES);
  for (const violation of result.violations) {
    const nodes = violation.nodes.map((node) => node.html.slice(0, 200));
    findings.push(`axe on ${name}: ${violation.id}: ${nodes.join(" | ")}`);
  }
  const wanted = await page.evaluate(() => document.documentElement.scrollWidth);
  const given = page.viewportSize().width;
  if (wanted > given) findings.push(`${name} is ${wanted} wide`);
  checked += 1;
  const folder = process.env.SEMEL_SCREENSHOTS;
  await page.evaluate(() => scrollTo(0, 0));
  const path = `${folder}/${name}.png`;
  if (folder) await page.screenshot({ path, fullPage: name.includes("small") });
}

// Every page, in light and dark, on a large screen and on a small one.
async function looks(browser, base, pages) {
  for (const colorScheme of ["light", "dark"]) {
    for (const [size, viewport] of Object.entries(SIZES)) {
      const page = await open(browser, base, { colorScheme, viewport });
      await page.goto(`${base}/sign-in`);
      await check(page, `${colorScheme}-${size}-sign-in`);
      await signIn(page, base, input.operator, "zoe");
      for (const [name, path] of Object.entries(pages)) {
        await page.goto(`${base}/${path}`);
        if (name === "record") await page.getByRole("button", { name: "Show the answer" }).click();
        for (const closed of await page.locator("summary").all()) await closed.click();
        await check(page, `${colorScheme}-${size}-${name}`);
      }
      await page.context().close();
    }
  }
}

// Thirty clients send one key at once; the page shows it while it happens.
async function watchStampede(page, base) {
  await page.goto(`${base}/`);
  await page.getByRole("status").getByText("Live").waitFor();
  const clients = Promise.all(Array.from({ length: 30 }, () => charge("stampede")));
  const tile = page.locator(".tile", { hasText: "In flight" });
  await tile.locator(".value", { hasText: /^1$/ }).waitFor();
  const answers = await clients;
  expect(answers.every((it) => it.status === 201 && it.text === input.exact), "one answer for all");
  await page.getByText("29 duplicate executions prevented").waitFor();
  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByRole("button", { name: "Resume" }).waitFor();
}

// Was it charged twice? By keyboard from any page: the key, the record.
async function findByKey(page, base) {
  await page.goto(`${base}/store`);
  await page.keyboard.press("/");
  await page.keyboard.type("stampede");
  await page.keyboard.press("Enter");
  await page.waitForURL(/records\?key=stampede/);
  for (let presses = 0; presses < 40; presses += 1) {
    await page.keyboard.press("Tab");
    if (await page.evaluate(() => document.activeElement.textContent) === "stampede") break;
  }
  await page.keyboard.press("Enter");
  await page.waitForURL(/record\?/);
  expect((await text(page)).includes("It ran once"), "the record says how often it ran");
  await page.getByRole("button", { name: "Show the answer" }).click();
  expect((await text(page)).includes("9007199254740993"), "numbers are exact");
  expect((await text(page)).includes("Answer read"), "the timeline has the look at the answer");
}

async function findByTime(page, base) {
  await page.goto(`${base}/records`);
  await page.getByLabel("Claimed since").fill("10m");
  await page.getByLabel("State").selectOption("completed");
  await page.getByRole("button", { name: "Search" }).click();
  await page.getByRole("link", { name: "stampede" }).click();
  expect((await text(page)).includes("It ran once"), "found by time");
}

// Resolves one record each way; the next retry of its client gets the result.
async function resolveOne(page, base) {
  for (const [key, answer] of [["late-done", true], ["late-freed", false]]) {
    expect((await charge(key)).status === 423, `${key} is held`);
    await page.goto(`${base}/held`);
    await page.getByRole("link", { name: `Resolve ${key}`, exact: true }).click();
    await page.getByLabel(answer ? /^It took effect/ : /^It did not take effect/).check();
    await page.getByLabel("Body").fill(answer ? '{"id":9007199254740993}' : "");
    await page.getByLabel("Why").fill("the bank says so");
    await page.getByRole("button", { name: "Resolve" }).click();
    await page.getByText("Done: resolved as").waitFor();
    expect((await text(page)).includes("“the bank says so”"), "the timeline has the reason");
  }
  const done = await charge("late-done");
  expect(done.status === 201 && done.text === '{"id":9007199254740993}', "the recorded answer");
  const freed = await charge("late-freed");
  expect(freed.status === 201 && freed.text === input.exact, "it ran again");
}

async function resolveAll(page, base) {
  await page.goto(`${base}/held`);
  await page.getByLabel("Reason begins with").fill("upstream answered 503");
  await page.getByRole("button", { name: "Filter" }).click();
  await page.getByRole("link", { name: /Resolve all that match/ }).click();
  await page.getByText("12 held records", { exact: true }).waitFor();
  await page.getByLabel(/^It did not take effect/).check();
  await page.getByLabel("Why").fill("rolled back");
  await page.getByRole("button", { name: "Resolve 12 records" }).click();
  await page.getByText("12 records resolved.").waitFor();
  const keys = Array.from({ length: 12 }, (_, number) => `late-${number}`);
  const retries = await Promise.all(keys.map((key) => charge(key)));
  expect(retries.every((it) => it.status === 201), "each retry runs");
}

// The same without JavaScript: search, inspect, resolve.
async function withoutScript(browser, base) {
  const page = await open(browser, base, { javaScriptEnabled: false });
  await signIn(page, base, input.operator, "ada");
  await page.fill("#find", "late-without-script");
  await page.click("header form.find button");
  await page.click("td a");
  expect((await page.textContent("main")).includes("It is unknown whether it took effect"), "held");
  await page.click("text=Resolve…");
  await page.check("#to-released");
  await page.fill("#why", "the bank has no such charge");
  await page.click("main form button");
  const content = await page.textContent("main");
  expect(content.includes("Done: resolved as released") && content.includes("ada"), "resolved");
  expect((await charge("late-without-script")).status === 201, "the retry runs");
  await page.goto(`${base}/`);
  expect((await page.textContent("main")).includes("duplicate executions prevented"), "numbers");
  await page.context().close();
}

async function asViewer(browser, base) {
  const page = await open(browser, base);
  await signIn(page, base, input.viewer, "eve");
  await page.goto(`${base}/held`);
  const acts = await page.getByRole("link", { name: /Resolve/ }).count();
  expect(acts === 0, "a viewer resolves nothing");
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.waitForURL(/sign-in/);
  await page.context().close();
}

const proxy = await serveUnderPrefix();
const prefixed = `http://127.0.0.1:${proxy.address().port}${PREFIX}`;
const browser = await chromium.launch({ executablePath: input.chromium, args: ["--no-sandbox"] });
try {
  const late = Array.from({ length: 12 }, (_, number) => `late-${number}`);
  for (const key of [...late, "late-done", "late-freed", "late-without-script"]) await charge(key);
  const page = await open(browser, prefixed);
  await page.goto(`${prefixed}/held`);
  await signIn(page, prefixed, input.operator, "zoe");
  await watchStampede(page, prefixed);
  await findByKey(page, prefixed);
  await findByTime(page, prefixed);
  const record = (key) => `?scope=payments&caller=&key=${key}`;
  await looks(browser, input.api, {
    now: "",
    records: "records?since=1h",
    record: `record${record("stampede")}`,
    held: "held",
    resolve: `resolve${record("late-3")}`,
    "resolve-all": "resolve-all?scope=payments",
    routes: "routes",
    store: "store",
  });
  await resolveOne(page, prefixed);
  await withoutScript(browser, input.api);
  await resolveAll(page, prefixed);
  await asViewer(browser, prefixed);
} catch (error) {
  findings.push(String(error.stack));
} finally {
  await browser.close();
  proxy.closeAllConnections();
  proxy.close();
}
console.log(JSON.stringify({ findings, checked }));
