// The page in a real browser, on a real server with the demo's traffic.
//
// DAMPER_URL names the server. Each test takes the state as it finds it: the demo is at some point of its
// story, and the rules are its own. The one rule written here is removed again.
import { AxeBuilder } from "@axe-core/playwright";
import { createClient } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import { expect, test as base } from "@playwright/test";
import type { Page } from "@playwright/test";
import { Kills } from "../gen/damper/v1/kills_pb";
import { Mode } from "../gen/damper/v1/policy_pb";
import { Rules } from "../gen/damper/v1/rules_pb";

const server = process.env["DAMPER_URL"];
if (!server) throw new Error("set DAMPER_URL to a running server with demo traffic, such as http://127.0.0.1:7654");

// The demo's chain: who calls whom.
const HOPS = [
  ["gateway", "orders"],
  ["orders", "inventory"],
  ["inventory", "stock"],
] as const;

// Every test also fails by what the browser complains about, and by a request that leaves the server.
const test = base.extend<{ quiet: undefined }>({
  quiet: [
    async ({ page }, use) => {
      const complaints: string[] = [];
      page.on("console", (message) => {
        if (message.type() === "error" || message.type() === "warning") complaints.push(message.text());
      });
      page.on("pageerror", (error) => complaints.push(error.message));
      page.on("request", (request) => {
        if (new URL(request.url()).origin !== new URL(server).origin) complaints.push(`asked ${request.url()}`);
      });
      await use(undefined);
      expect(complaints).toEqual([]);
    },
    { auto: true },
  ],
});

function routeRow(page: Page, caller: string, callee: string) {
  return page
    .locator("table.routes tbody tr")
    .filter({ has: page.locator('[data-label="Caller"]').getByText(caller, { exact: true }) })
    .filter({ has: page.locator('[data-label="Callee"]').getByText(callee, { exact: true }) })
    .first();
}

async function opened(page: Page, path = "/"): Promise<void> {
  await page.goto(path);
  await expect(page.getByTestId("liveness")).toContainText("live");
  for (const [caller, callee] of HOPS) await expect(routeRow(page, caller, callee)).toBeVisible();
}

test("every hop of the demo is a row with its multiplication", async ({ page }) => {
  await opened(page);
  for (const [caller, callee] of HOPS) {
    const row = routeRow(page, caller, callee);
    await expect(row.getByTestId("amplification")).toHaveText(/^×\d+\.\d\d$/);
    await expect(row.locator('[data-label="Calls/s"]')).toHaveText(/\d/);
  }
  await expect(page.getByTestId("fleet-amplification")).toHaveText(/^×\d+\.\d\d$/);
});

test("figures move without a reload", async ({ page }) => {
  await opened(page);
  const figures = async () => {
    const texts = HOPS.map(([caller, callee]) => routeRow(page, caller, callee).innerText());
    return (await Promise.all(texts)).join("\n");
  };
  await page.evaluate(() => document.body.setAttribute("data-loaded", "once"));
  const before = await figures();
  await expect.poll(figures).not.toBe(before);
  await expect(page.locator("body")).toHaveAttribute("data-loaded", "once");
});

test("a rule put through the API appears, says who applied it, and goes", async ({ page }) => {
  const rules = createClient(Rules, createGrpcWebTransport({ baseUrl: server }));
  const key = {
    callerService: "gateway",
    callerCluster: "*",
    calleeService: "browser-test",
    calleeMethod: `test.Browser/Put${Date.now()}`,
  };
  await opened(page);
  const row = page.locator(`tr[data-rule="${Object.values(key).join(" ")}"]`);
  await expect(row).toHaveCount(0);
  // The list may be long: the filter brings the row to the first page.
  await page.keyboard.press("/");
  await page.keyboard.type(key.calleeMethod);
  await expect(page.getByText("No rule matches")).toBeVisible();
  try {
    const policy = { mode: Mode.OBSERVE, retry: { maxAttempts: 4 } };
    const { rule } = await rules.putRule({ rule: { key, policy } });
    await expect(row).toBeVisible();
    await expect(row.locator('[data-label="Mode"]')).toHaveText("observe");
    await expect(row.locator('[data-label="Attempts"]')).toHaveText("4");
    await expect(row.locator('[data-label="Revision"]')).toContainText(String(rule?.revision));
    // The demo's gateway is connected and matches: all of them come to apply it.
    await expect.poll(async () => {
      const [, applied, of] = /(\d+) of (\d+)/.exec(await row.getByTestId("applied").innerText()) ?? [];
      return of !== undefined && Number(of) > 0 && applied === of;
    }).toBe(true);
  } finally {
    await rules.deleteRule({ key });
  }
  await expect(row).toHaveCount(0);
});

test("a kill switch is said while it is in force", async ({ page }) => {
  const kills = createClient(Kills, createGrpcWebTransport({ baseUrl: server }));
  const key = { callerService: "*", callerCluster: "*", calleeService: `browser-test-${Date.now()}`, calleeMethod: "*" };
  await opened(page);
  const said = page.getByTestId("kill").filter({ hasText: key.calleeService });
  await expect(said).toHaveCount(0);
  try {
    await kills.kill({ key, options: { reason: "a browser test", author: "playwright" } });
    await expect(said).toContainText(/nothing is repeated to browser-test-\d+, until .* left/);
    await expect(said).toContainText("a browser test");
    await expect(said).toContainText(`damper unkill --callee '${key.calleeService}'`);
  } finally {
    await kills.unkill({ key });
  }
  await expect(said).toHaveCount(0);
});

test("a link brings back filter and sorting, and Back works", async ({ page }) => {
  await page.goto("/?q=stock&routes=-attempts");
  const search = page.getByRole("searchbox");
  await expect(search).toHaveValue("stock");
  await expect(routeRow(page, "inventory", "stock")).toBeVisible();
  await expect(routeRow(page, "gateway", "orders")).toHaveCount(0);
  const routes = page.locator("table.routes");
  await expect(routes.getByRole("columnheader", { name: "Attempts/s" })).toHaveAttribute("aria-sort", "descending");
  await routes.getByRole("button", { name: "Caller" }).click();
  await expect(page).toHaveURL(/routes=caller/);
  await page.goBack();
  await expect(routes.getByRole("columnheader", { name: "Attempts/s" })).toHaveAttribute("aria-sort", "descending");
  await search.press("Escape");
  await expect(routeRow(page, "gateway", "orders")).toBeVisible();
});

for (const colorScheme of ["light", "dark"] as const) {
  test(`nothing is wrong for assistive technology in ${colorScheme}`, async ({ page }) => {
    await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
    await opened(page);
    const { violations } = await new AxeBuilder({ page }).analyze();
    expect(violations.map(({ id, nodes }) => [id, nodes.map(({ html }) => html)])).toEqual([]);
  });
}

test("a narrow window does not scroll sideways", async ({ page }) => {
  await page.setViewportSize({ width: 420, height: 900 });
  await opened(page);
  expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(420);
});

test("a second tab goes on when the first is closed", async ({ page, context }) => {
  await opened(page);
  const second = await context.newPage();
  await opened(second);
  await page.close();
  await expect(second.getByTestId("liveness")).toContainText("live");
  await second.close();
});

test("the policy for content allows nothing from elsewhere", async ({ request }) => {
  const answer = await request.get("/");
  expect(answer.ok()).toBe(true);
  expect(answer.headers()["content-security-policy"]).toContain("default-src 'self'");
});
