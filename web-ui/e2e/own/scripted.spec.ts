// Cases that the demo's services never cause: rejections, missing acknowledgements, missing features, cycles.
// Each client is scripted over the real protocol; the statistics are exact.
import { CircuitState, Fate, Source } from "../../gen/damper/v1/distribution_pb";
import { Mode } from "../../gen/damper/v1/policy_pb";
import { FEATURES, silent } from "./client";
import type { Answer } from "./client";
import { expectSound } from "../accessibility";
import { KEY, at, expect, live, say, setting, test } from "./setup";

const RULE = { key: KEY, policy: { mode: Mode.ENFORCE, retry: { maxAttempts: 3 }, retryBreaker: { ratio: 0.1 } } };

test("a client that rejects a rule is named on every page", async ({ page, api, connect }) => {
  const answer: Answer = ({ kind }) => {
    const rules = kind.case === "delta" ? kind.value.changed : kind.case === "snapshot" ? kind.value.rules : [];
    return rules.map(({ key, revision }) => ({ ...(key && { key }), revision, reason: "retry.max_attempts: 3 is above 2, the bound of this build" }));
  };
  connect("gateway", {}, answer);
  connect("gateway");
  await live(page, at("/rule"));
  await setting(page, "retry.max_attempts").fill("3");
  await page.getByRole("button", { name: /^Review/ }).click();
  await say(page.getByRole("dialog"));
  await page.getByRole("dialog").getByRole("button", { name: "Save" }).click();
  const convergence = page.getByTestId("convergence");
  await expect(convergence).toContainText("applied by 1 of 2 clients");
  await expect(convergence.getByRole("listitem")).toHaveText(/gateway gateway-1: rejected .*3 is above 2/);
  await expect(page.getByText("Applied by 1 of 2 clients, rejected by 1.")).toBeVisible();
  await page.getByRole("link", { name: "Rules", exact: true }).click();
  await expect(page.getByTestId("applied")).toContainText(/1 of 2.*1 rejected/s);
  await page.getByRole("link", { name: "Clients" }).click();
  const row = page.getByRole("row").filter({ hasText: "gateway-1" });
  await expect(row).toContainText(/rejected the rule\s+gateway default orders .*: retry\.max_attempts: 3 is above 2, the bound of this build/);
  await expect(page.getByText("1 with problems")).toBeVisible();
  await expectSound(page);
  await page.getByLabel("Show only clients with problems").check();
  await expect(page).toHaveURL(/only=amiss/);
  await expect(page.getByRole("row").filter({ hasText: "gateway-2" })).toHaveCount(0);
  await expect(row).toBeVisible();
  expect((await api.rules.getRule({ key: KEY })).policy?.retry?.maxAttempts).toBe(3);
});

test("lagging clients are named until they acknowledge", async ({ page, connect }) => {
  const slow = connect("gateway", {}, silent);
  connect("gateway");
  await live(page, at("/rule"));
  await page.getByRole("button", { name: /^Review/ }).click();
  await say(page.getByRole("dialog"));
  await page.getByRole("dialog").getByRole("button", { name: "Save" }).click();
  const convergence = page.getByTestId("convergence");
  await expect(convergence).toContainText(/Stored at revision \d+, applied by 1 of 2 clients/);
  await expect(convergence.getByRole("listitem")).toHaveText(/gateway gateway-1: has not acknowledged/);
  await expect(page.getByText("Applied by 1 of 2 clients.", { exact: true })).toBeVisible();
  await expectSound(page);
  slow.catchUp();
  await expect(convergence).toContainText(/Stored at revision \d+, applied by all 2 clients/);
  await expect(page.getByText("Applied by 2 of 2 clients.", { exact: true })).toBeVisible();
  await expect(convergence.getByRole("listitem")).toHaveCount(0);
});

test("the source of a client's rules, missing features and overrides", async ({ page, api, connect }) => {
  await api.rules.putRule({ rule: { ...RULE, policy: { ...RULE.policy, budget: { ratio: 0.1 } } } });
  connect("gateway", { source: Source.LIVE });
  connect("gateway", { source: Source.LAST_KNOWN_GOOD }, silent).report({ source: Source.LAST_KNOWN_GOOD });
  connect("gateway", { source: Source.BUILT_IN }, silent).report({ source: Source.BUILT_IN });
  connect("gateway", { features: FEATURES.filter((name) => name !== "budget"), overrideMode: Mode.OBSERVE }).report({ overrideMode: Mode.OBSERVE });
  await live(page, "/clients?sort=instance");
  const row = (nr: number) => page.getByRole("row").filter({ hasText: `gateway-${String(nr)}` });
  await expect(row(1).getByRole("cell", { name: "live", exact: true })).toBeVisible();
  // An address has no spaces.
  const address = row(1).locator('[data-label="Address"]');
  await expect(address).toHaveText(/^127\.0\.0\.1:\d+$/);
  await expect(address).toHaveCSS("white-space", "nowrap");
  await expect(row(2)).toContainText("last known good");
  await expect(row(3)).toContainText("no rules");
  await expect(row(2)).toContainText(/0\s+of [1-9]/);
  await expect(row(4)).toContainText(/1 rule not applied: the SDK lacks budget/);
  await expect(row(4)).toContainText("Local override: observe");
  await expectSound(page);
});

test("amplification is attempts / calls, exactly, on every page", async ({ page, api, connect }) => {
  await api.rules.putRule({ rule: RULE });
  connect("gateway", { serves: true }).flow((second) => {
    const [calls, attempts, retries] = [100n * second, 250n * second, 150n * second];
    return { routes: [{ calleeService: "orders", calleeMethod: KEY.calleeMethod, calls, attempts, retries, fates: [{ fate: Fate.OK_AFTER_RETRY, count: calls }] }] };
  });
  await live(page, "/");
  await expect(page.getByTestId("amplification")).toHaveText("×2.50");
  await expect(page.getByTestId("fleet-amplification")).toHaveText("×2.50");
  await expect(page.getByRole("row").filter({ hasText: KEY.calleeMethod })).toContainText("high");
  await expect(page.getByTestId("verdict")).toContainText(/Retry storm on 1 route.*gateway → orders.*×2\.50/s);
  await page.getByTestId("verdict").getByRole("link", { name: "gateway → orders" }).click();
  await expect(page.getByText("×2.50").first()).toBeVisible();
  await live(page, "/chain");
  await expect(page.getByTestId("worst-measured")).toContainText("×2.50");
  await expect(page.getByTestId("worst-possible")).toContainText("≤ 3");
});

test("a cycle of services is named, one click from the rule", async ({ page, api, connect }) => {
  await api.rules.putRule({ rule: RULE });
  const hops = [["gateway", "orders", KEY.calleeMethod], ["orders", "ledger", "shop.v1.Ledger/Book"], ["ledger", "orders", "shop.v1.Orders/Confirm"]] as const;
  for (const [service, calleeService, calleeMethod] of hops) {
    connect(service, { serves: true }).report({ routes: [{ calleeService, calleeMethod, calls: 100n, attempts: 200n }] });
  }
  await live(page, "/chain");
  await expect(page.getByText("Services call each other in a cycle:")).toBeVisible();
  await expect(page.getByText("ledger → orders → ledger")).toBeVisible();
  await expect(page.getByText("closes a cycle")).toBeVisible();
  await expectSound(page);
  await page.getByRole("row").filter({ hasText: KEY.calleeMethod }).getByRole("link", { name: "enforce" }).click();
  await expect(page).toHaveURL(at("/rule"));
  await expect(setting(page, "retry.max_attempts")).toHaveValue("3");
});

test("gates of a route are live: breaker, budget, circuit", async ({ page, api, connect }) => {
  await api.rules.putRule({ rule: { ...RULE, policy: { ...RULE.policy, budget: { ratio: 0.1 }, circuitBreaker: {} } } });
  const caller = connect("gateway");
  const report = (attempts: bigint, refuses: boolean) => {
    caller.report({ routes: [{ calleeService: "orders", calleeMethod: KEY.calleeMethod, calls: 100n, attempts,
      state: { windowFailures: 40n, windowSuccesses: 60n, breakerRefuses: refuses, budgetRefuses: refuses, circuit: refuses ? CircuitState.OPEN : CircuitState.CLOSED } }] });
  };
  report(100n, false);
  await live(page, at("/route"));
  const gate = (name: string) => page.locator(`[data-gate="${name}"]`);
  await expect(gate("breaker")).toContainText(/40 failures against .*60 successes/s);
  const calm = await gate("circuit").innerText();
  report(101n, true);
  await expect(gate("breaker")).toContainText("no credit for a retry");
  await expect(gate("budget")).toContainText("used up");
  await expect(gate("budget")).not.toContainText("not used up");
  await expect(gate("circuit")).not.toHaveText(calm);
  await expectSound(page);
});

test("a kill shows reach, delivery and remaining time, and expires", async ({ page, api, connect }) => {
  const callers = [connect("gateway"), connect("gateway")];
  for (const caller of callers) {
    caller.flow((second) => {
      const [calls, attempts] = [100n * second, 150n * second];
      return { routes: [{ calleeService: "orders", calleeMethod: KEY.calleeMethod, calls, attempts, retries: attempts - calls }] };
    });
  }
  await live(page, "/kill?callee=orders&minutes=15");
  // Two processes with 50/s each.
  await expect(page.getByTestId("reach")).toContainText(/Stop retries to orders: 1 known route,\s+2 connected clients.*Removes\s+[1-9]\d(\.\d)? retries\/s/s);
  const press = page.getByRole("button", { name: "Stop retries…" });
  await press.click();
  await expect(page.getByRole("dialog")).toHaveCount(0);
  await say(page, "orders is down");
  await press.click();
  await expect(page.getByRole("dialog")).toContainText(/Each call is still attempted once..*orders is down/s);
  await expectSound(page);
  for (const caller of callers) caller.answer = silent;
  await page.getByRole("button", { name: "Stop retries now" }).click();
  const delivered = page.getByTestId("delivered");
  await expect(delivered).toContainText("0 of 2");
  await expect(page.getByTestId("convergence").getByRole("listitem")).toHaveCount(2);
  callers[0]?.catchUp();
  await expect(delivered).toContainText("1 of 2");
  callers[1]?.catchUp();
  await expect(delivered).toContainText("all 2");
  const ends = page.getByRole("cell", { name: /^in / });
  const first = await ends.innerText();
  await expect(ends).not.toHaveText(first);
  await expectSound(page);
  // A short kill expires during the test.
  await api.kills.unkill({ key: { ...KEY, callerService: "*", callerCluster: "*", calleeMethod: "*" } });
  await expect(page.getByText("No kill switch is in force.")).toBeVisible();
  await api.kills.kill({ key: KEY, timeToLive: { seconds: 30n }, options: { reason: "a short one" } });
  await expect(ends).toHaveText(/^in \d+(\.\d+)? s$/);
  await expect(page.getByText("No kill switch is in force.")).toBeVisible({ timeout: 60_000 });
});
