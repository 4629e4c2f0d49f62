// An incident on the demo's real traffic: one operator loosens the rule of a hop, stock starts to fail, and
// another operator, who knows neither, uses only the web UI. Hop, author and reason are random in each run,
// so that the operator's steps cannot contain them.
import { create } from "@bufbuild/protobuf";
import { expect, test as base } from "@playwright/test";
import { randomInt } from "node:crypto";
import { ChainSchema, RetryBreakerSchema } from "../../gen/damper/v1/policy_pb";
import type { Policy } from "../../gen/damper/v1/policy_pb";
import { ran, started } from "../../screenshots/process";
import { heed } from "../browser_errors";
import { BOUNDS_S, operate } from "./operator";
import { freePort } from "./server";
import { apiOf } from "./setup";

const CHAIN = [
  { caller: "gateway", callee: "orders", method: "shop.v1.Orders/Place" },
  { caller: "orders", callee: "inventory", method: "shop.v1.Inventory/Reserve" },
  { caller: "inventory", callee: "stock", method: "shop.v1.Stock/Take" },
] as const;
const PEOPLE = ["mara@platform", "jun", "release-robot", "o'neill"] as const;
const REASONS = ["more attempts for the sale", "fewer errors at checkout", "as the vendor advises"] as const;

// The times include Chromium's, so a slow machine may take a multiple of the targets.
const SLOWEST = 4;

type Hop = (typeof CHAIN)[number];
type Api = ReturnType<typeof apiOf>;

const test = base.extend<{ demo: { url: string; control: string } }>({
  // Playwright wants the pattern although nothing is taken from it.
  // eslint-disable-next-line no-empty-pattern
  demo: async ({}, use) => {
    const control = `127.0.0.1:${String(await freePort())}`;
    const { url, end } = await started("demo", "--playground", "--listen", "127.0.0.1:0", "--control", control);
    await use({ url, control });
    await end();
  },
  baseURL: async ({ demo }, use) => { await use(demo.url); },
});

// In random order.
function shuffled<Of>(all: readonly Of[]): Of[] {
  const left = [...all];
  return all.flatMap(() => left.splice(randomInt(left.length), 1));
}

// Returns the revision of the change.
async function change({ rules }: Api, { callee, method }: Hop, how: (policy: Policy) => void, author: string, reason: string): Promise<bigint> {
  const rule = await rules.getRule({ key: { callerService: "*", callerCluster: "*", calleeService: callee, calleeMethod: method } });
  if (rule.policy === undefined) throw new Error(`the demo has no rule for ${callee}`);
  how(rule.policy);
  return (await rules.putRule({ rule, options: { author, reason } })).revision;
}

function loosen(policy: Policy): void {
  if (policy.retry) policy.retry.maxAttempts = 6;
  policy.retryBreaker = create(RetryBreakerSchema, { enabled: false });
  policy.chain = create(ChainSchema, { ignoreNoMoreRetry: true });
}

test("an operator finds, stops, verifies and explains a storm", async ({ page, context, demo }) => {
  test.slow();
  const complain = heed(context, demo.url);
  const api = apiOf(demo.url);
  await expect.poll(async () => (await api.fleet.listRoutes({})).routes.filter(({ callsPerS }) => callsPerS > 0).length).toBe(CHAIN.length);
  const [hop, before, after] = shuffled(CHAIN) as [Hop, Hop, Hop];
  const [culprit, ...others] = shuffled(PEOPLE) as [string, string, string];
  const [reason = ""] = shuffled(REASONS);
  const fewer = ({ retry }: Policy) => { if (retry) retry.maxAttempts = 2; };

  await change(api, before, fewer, others[0], "tidied");
  const revision = await change(api, hop, loosen, culprit, reason);
  await change(api, after, fewer, others[1], "tidied too");
  await ran("demo", "fault", "70%", "--control", demo.control);
  const incident = await operate(page, Date.now());

  for (const { what, clockedS, inAllS } of incident.times) console.log(`drill: ${what}: ${clockedS.toFixed(1)} s, with reading and clicking ${inAllS.toFixed(1)} s`);
  expect(incident.storming).toEqual({ caller: hop.caller, callee: hop.callee });
  expect(incident.repeats.before).toBeGreaterThan(10);
  expect(incident.repeats.after).toBe(0);
  expect(incident.culprit.who).toBe(culprit);
  expect(incident.culprit.why).toContain(reason);
  expect(incident.culprit.what).toMatch(/max_attempts 3 → 6/);
  expect(incident.culprit.revision).toBe(`revision ${String(revision)}`);
  expect(incident.times.map(({ inAllS }, at) => inAllS <= SLOWEST * (BOUNDS_S[at] ?? 0)), JSON.stringify(incident.times)).toEqual(BOUNDS_S.map(() => true));
  complain();
});
