// Speed of the web UI with many rules: `cargo xtask page-speed` fills a server and runs this.
//
// Prints a table and fails on no time. Each value is the median of several runs, with the slowest
// one. The first tab opens in a new browser; the second shares its stream. Tasks below 50 ms count as 0.
import { toBinary } from "@bufbuild/protobuf";
import { createClient } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import { expect, test } from "@playwright/test";
import type { Browser, BrowserContext, Page } from "@playwright/test";
import { Fleet, WatchResponseSchema } from "../gen/damper/v1/fleet_pb";
import { Mode } from "../gen/damper/v1/policy_pb";
import { Rules } from "../gen/damper/v1/rules_pb";
import { answered, longTasks, observe } from "./observed";

const RUNS = 7;
const WATCHED_S = 10;
const baseUrl = process.env["DAMPER_URL"];
if (!baseUrl) throw new Error("set DAMPER_URL to a server full of rules: `cargo xtask page-speed` does");
const transport = createGrpcWebTransport({ baseUrl });
const rules = createClient(Rules, transport);

const rows: string[][] = [];

function row(what: string, ...figures: string[]): void {
  rows.push([what, ...figures]);
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? NaN;
}

function times(what: string, ms: readonly number[]): void {
  row(what, `${median(ms).toFixed(0)} ms`, `${Math.max(...ms).toFixed(0)} ms`);
}

function kilobytes(bytes: number): string {
  return `${(bytes / 1000).toFixed(0)} kB`;
}

async function stored(): Promise<number> {
  return Number((await rules.listRules({ pageSize: 1 })).total);
}

// A tab on the rules, everything shown.
async function opened(context: BrowserContext, all: number): Promise<Page> {
  const page = await context.newPage();
  await observe(page, all);
  await page.goto("/rules");
  await page.waitForFunction(() => window.seen.allMs !== undefined);
  return page;
}

interface Opening {
  rowsMs: number[];
  allMs: number[];
  tasksMs: number[];
}

async function note(page: Page, into: Opening): Promise<void> {
  const { rowsMs, allMs } = await page.evaluate(() => window.seen);
  into.rowsMs.push(rowsMs ?? NaN);
  into.allMs.push(allMs ?? NaN);
  into.tasksMs.push(Math.max(0, ...(await longTasks(page))));
}

async function openings(browser: Browser, all: number): Promise<void> {
  const first: Opening = { rowsMs: [], allMs: [], tasksMs: [] };
  const second: Opening = { rowsMs: [], allMs: [], tasksMs: [] };
  for (let run = 0; run < RUNS; run += 1) {
    const context = await browser.newContext();
    await note(await opened(context, all), first);
    await note(await opened(context, all), second);
    await context.close();
  }
  for (const [name, { rowsMs, allMs, tasksMs }] of [["first", first], ["second", second]] as const) {
    times(`${name} tab: first rows`, rowsMs);
    times(`${name} tab: all rules known`, allMs);
    times(`${name} tab: longest task`, tasksMs);
  }
}

// What the stream brings before the first pause, without a browser.
async function stream(all: number): Promise<void> {
  const ms: number[] = [];
  let bytes = 0;
  for (let run = 0; run < RUNS; run += 1) {
    const [end, begun] = [new AbortController(), performance.now()];
    let known = 0;
    bytes = 0;
    for await (const message of createClient(Fleet, transport).watch({ rules: true }, { signal: end.signal })) {
      bytes += toBinary(WatchResponseSchema, message).length;
      known += message.rules.length;
      if (known >= all) break;
    }
    ms.push(performance.now() - begun);
    end.abort();
  }
  times(`stream to its last rule, ${kilobytes(bytes)}, read by Node`, ms);
}

async function weight(browser: Browser): Promise<void> {
  const context = await browser.newContext();
  const page = await context.newPage();
  const sent = new Map<string, number[]>();
  const read: Promise<void>[] = [];
  context.on("requestfinished", (request) => {
    const kind = /\.(js|css)$/.exec(request.url())?.[1];
    if (kind === undefined) return;
    read.push((async () => {
      const [{ responseBodySize }, answer] = [await request.sizes(), await request.response()];
      const raw = (await answer?.body())?.length ?? 0;
      const before = sent.get(kind) ?? [0, 0];
      sent.set(kind, [(before[0] ?? 0) + responseBodySize, (before[1] ?? 0) + raw]);
    })());
  });
  await page.goto("/rules");
  await expect(page.getByTestId("liveness")).toContainText("live");
  await Promise.all(read);
  for (const [kind, [bytes = 0, raw = 0]] of sent) row(`${kind} as sent (unpacked)`, kilobytes(bytes), `(${kilobytes(raw)})`);
  await context.close();
}

async function repeated(what: string, once: (run: number) => Promise<number>): Promise<void> {
  const ms: number[] = [];
  for (let run = 0; run < RUNS; run += 1) ms.push(await once(run));
  times(what, ms);
}

const firstRow = (caller: string) => `table.rules tbody tr:first-child[data-rule^="${caller} "]`;

async function handling(page: Page): Promise<void> {
  await repeated("filter: last key to its rows", async () => {
    await page.getByRole("searchbox").fill("service-04");
    return answered(page, "input", firstRow("service-042"), () => page.keyboard.press("2"));
  });
  await page.getByRole("searchbox").fill("");
  await repeated("sort: press to its rows", async (run) => {
    const heading = page.getByRole("button", { name: "Caller" });
    return answered(page, "click", firstRow(run % 2 === 0 ? "service-099" : "service-000"), () => heading.click());
  });
  await page.goto("/rules");
  await page.waitForFunction(() => window.seen.allMs !== undefined);
}

async function change(page: Page): Promise<void> {
  const key = { callerService: "service-000", callerCluster: "*", calleeService: "callee-000", calleeMethod: "*" };
  const changed = page.locator(`tr.fresh[data-rule="${Object.values(key).join(" ")}"]`);
  const longest: number[] = [];
  for (let run = 0; run < RUNS; run += 1) {
    await expect(changed).toHaveCount(0);
    await longTasks(page);
    const before = (await rules.getRule({ key })).policy?.retry?.maxAttempts;
    await rules.putRule({ rule: { key, policy: { mode: Mode.ENFORCE, retry: { maxAttempts: before === 2 ? 3 : 2 } } } });
    await expect(changed).toBeVisible();
    await expect(changed).toHaveCount(0);
    longest.push(Math.max(0, ...(await longTasks(page))));
  }
  times("one rule changes: longest task over 50 ms", longest);
}

async function busy(page: Page, path: string): Promise<void> {
  await page.goto(path);
  await expect(page.getByTestId("liveness")).toContainText("live");
  const devtools = await page.context().newCDPSession(page);
  await devtools.send("Performance.enable");
  const read = async () => {
    const { metrics } = await devtools.send("Performance.getMetrics");
    return new Map(metrics.map(({ name, value }) => [name, value]));
  };
  const before = (await read()).get("TaskDuration") ?? NaN;
  await longTasks(page);
  await page.waitForTimeout(WATCHED_S * 1000);
  const after = (await read()).get("TaskDuration") ?? NaN;
  const longest = Math.max(0, ...(await longTasks(page)));
  row(`${path} watched: main thread a second; longest task over 50 ms`, `${(((after - before) * 1000) / WATCHED_S).toFixed(0)} ms`, `${longest.toFixed(0)} ms`);
  await devtools.send("HeapProfiler.collectGarbage");
  row(`${path}: memory of the tab's scripts`, kilobytes((await read()).get("JSHeapUsedSize") ?? NaN), "");
}

test("what the page needs", async ({ browser }) => {
  const all = await stored();
  expect(all).toBeGreaterThan(0);
  await weight(browser);
  await stream(all);
  await openings(browser, all);
  const context = await browser.newContext();
  const page = await opened(context, all);
  await handling(page);
  await change(page);
  for (const path of ["/rules", "/", "/chain", "/uncovered", "/clients"]) await busy(page, path);
  await context.close();
  const table = [[`${String(all)} rules`, `median of ${String(RUNS)}`, "worst"], ["--", "--:", "--:"], ...rows];
  console.log(table.map((cells) => `| ${cells.join(" | ")} |`).join("\n"));
});
