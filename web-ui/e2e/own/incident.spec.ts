// An incident: where failures start, the kill, and its effect. Reports are scripted; server, web UI and
// protocol are real.
import { Fate } from "../../gen/damper/v1/distribution_pb";
import { expectSound } from "../accessibility";
import { expect, KEY, live, test } from "./setup";

const ORDERS = { calleeService: "orders", calleeMethod: KEY.calleeMethod };
const LEDGER = { calleeService: "ledger", calleeMethod: "shop.v1.Ledger/Book" };

// Calls per second, and how many of them fail.
function failing(route: typeof ORDERS, perS: bigint, failed: bigint) {
  return (second: bigint) => ({
    routes: [{ ...route, calls: perS * second, attempts: perS * second,
      fates: [{ fate: Fate.OK, count: (perS - failed) * second }, { fate: Fate.ATTEMPTS_EXHAUSTED, count: failed * second }] }],
  });
}

test("the start of failures is named on Overview, Chain and Route", async ({ page, connect }) => {
  connect("gateway", { serves: true }).flow(failing(ORDERS, 50n, 30n));
  connect("orders", { serves: true }).flow(failing(LEDGER, 50n, 30n));
  connect("ledger", { serves: true });
  await live(page, "/");
  const roots = page.getByTestId("roots");
  await expect(roots).toContainText(/Failures start at ledger \(orders → ledger\);\s+1 route upstream fails as a result:\s+gateway → orders\./);
  await expectSound(page);

  await roots.getByRole("link", { name: "gateway → orders" }).click();
  await expect(page).toHaveURL(/\/route\?caller=gateway&/);
  await expect(page.getByTestId("verdict")).toContainText(/Failing: 60\.0 % of calls.*Failures start at ledger/s);
  await roots.getByRole("link", { name: "orders → ledger" }).click();
  await expect(page).toHaveURL(/\/route\?caller=orders&.*callee=ledger/);

  await roots.getByRole("link", { name: "ledger", exact: true }).click();
  await expect(page).toHaveURL(/\/chain\?service=ledger$/);
  await page.getByRole("link", { name: "Whole chain" }).click();
  const edge = (name: string) => page.locator(`svg.chain [data-edge="${name}"]`);
  await expect(edge("orders ledger")).toHaveAttribute("aria-label", /60\.0 % of its calls fail, and failures start here/);
  await expect(edge("gateway orders")).toHaveAttribute("aria-label", /60\.0 % of its calls fail(?!, and failures start)/);
  await expect(page.locator("svg.chain .words")).toContainText(/✕ fails 60 %.*✕ start 60 %/s);
  await expect(page.locator('svg.chain [data-service="ledger"]')).toContainText("✕ failures start here");
  await expectSound(page);
});

test("a stopped storm is confirmed on the kill switch and on Overview", async ({ page, connect }) => {
  let stopped = false;
  let repeats = 0n;
  let calls = 0n;
  connect("gateway", { serves: true }, ({ kills }) => {
    stopped ||= (kills?.kills.length ?? 0) > 0;
    return [];
  }).flow(() => {
    calls += 100n;
    if (!stopped) repeats += 150n;
    return { routes: [{ ...ORDERS, calls, attempts: calls + repeats, retries: repeats, fates: [{ fate: Fate.OK, count: calls }] }] };
  });
  await live(page, "/");
  const verdict = page.getByTestId("verdict");
  await expect(verdict).toContainText(/Retry storm on 1 route.*gateway → orders/s);
  await verdict.getByRole("link", { name: /Stop retries to orders/ }).click();
  await expect(page.getByLabel(/^Reason/)).toHaveValue(/^Retry storm: gateway → orders ×2\.\d\d, \d+ retries\/s$/);
  await page.getByLabel(/^Your name/).fill("kim");
  await page.getByRole("button", { name: "Stop retries…" }).click();
  await page.getByRole("button", { name: "Stop retries now" }).click();
  const proof = page.getByTestId("proof");
  await expect(page.getByTestId("convergence")).toContainText("applied by the only client");
  await expect(page.getByLabel("Callee", { exact: true })).toHaveValue("");
  // Tests of the components show the time until then, which is the window of rates.
  await expect(proof).toContainText(/Stopped:\s*0\.0 retries\/s now/, { timeout: 60_000 });
  await expect(page.getByTestId("still")).toHaveText(/✓\s*0\.0/);
  await expectSound(page);
  await page.getByRole("link", { name: "Overview", exact: true }).click();
  await expect(verdict).toContainText("No retry storm");
  await expectSound(page);
});
