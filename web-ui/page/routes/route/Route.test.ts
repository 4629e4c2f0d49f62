// A route's page against an in-memory server.
import { create } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createRouterTransport } from "@connectrpc/connect";
import { cleanup, render, screen, waitFor, within } from "@testing-library/svelte";
import userEvent from "@testing-library/user-event";
import { Fate } from "$wire/distribution_pb";
import { Fleet } from "$wire/fleet_pb";
import type { WatchRequest, WatchResponse } from "$wire/fleet_pb";
import { History, ObjectKind } from "$wire/history_pb";
import { Mode } from "$wire/policy_pb";
import { Rules } from "$wire/rules_pb";
import { WhoAmIResponseSchema } from "$wire/tokens_pb";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { api } from "../../api/client";
import App from "../../shell/App.svelte";
import { hrefOf } from "../../context/address.svelte";
import type { Listener } from "../../feed/link";
import type { Session } from "../../api/session";
import { messageEvent, kill, message, route, withDialogs } from "../../testing/messages";
import "../../testing/pages";

vi.mock("uplot", () => ({ default: class { setData() {} setSize() {} destroy() {} } }));

beforeEach(() => {
  vi.stubGlobal("ResizeObserver", class { observe() {} unobserve() {} disconnect() {} });
  vi.stubGlobal("scrollTo", () => {});
  vi.stubGlobal("matchMedia", () => new EventTarget());
});
afterEach(() => {
  cleanup();
  hide(false);
});

const session: Session = {
  signIn: () => Promise.resolve(undefined),
  signOut: () => Promise.resolve(undefined),
  who: () => Promise.resolve(create(WhoAmIResponseSchema, {})),
};

const any = { callerService: "*", callerCluster: "*", calleeService: "stock", calleeMethod: "*" };
const wide = { ...any, calleeService: "*" };
const explained = {
  winner: { key: any, revision: 12n, updatedBy: "ann", owner: "team-stock" },
  losers: [{ rule: { key: wide }, reason: "its callee is less specific" }],
  effective: {
    mode: Mode.ENFORCE,
    retry: { maxAttempts: 2 },
    retryBreaker: { enabled: true, earn: 0.02, ratio: 0.1, minFailures: 1, buckets: 10, bucketLength: { seconds: 1n } },
  },
  bound: { maxAttempts: 2, steadyAttemptsPerCall: 1.1, freeRetriesPerWindow: 3, window: { seconds: 10n } },
  cuts: [{ guard: wide, owner: "team-platform", field: "retry.max_attempts", problem: "5 is above 2" }],
  chain: { sends: 4n, hops: [{ callerService: "orders", calleeService: "stock", maxAttempts: 2, sends: 4n, multiplies: true }] },
};

interface Served {
  watch?: (request: WatchRequest, signal: AbortSignal) => AsyncIterable<WatchResponse>;
  explain?: () => object;
  changes?: (calleeService: string, kind: ObjectKind) => object[];
  // The oldest revision that is kept.
  oldest?: bigint;
}

function hide(hidden: boolean): void {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}

async function forever(signal: AbortSignal): Promise<void> {
  await new Promise((resolve) => { signal.addEventListener("abort", resolve); });
}

function shown({ watch, explain, changes, oldest = 1n }: Served, at = hrefOf("/route", route("orders").key), first: object = {}) {
  history.replaceState(null, "", at);
  let send: Listener = () => {};
  const transport = createRouterTransport(({ service }) => {
    service(Fleet, {
      watch: (request, { signal }) => watch?.(request, signal) ?? (async function* () { await forever(signal); yield message({}); })(),
    });
    service(Rules, { explain: () => explain?.() ?? explained });
    service(History, { listChanges: ({ filter }) => ({ changes: changes?.(filter?.names?.calleeService ?? "", filter?.kind ?? ObjectKind.UNSPECIFIED) ?? [], oldestRevision: oldest }) });
  });
  render(App, {
    api: api(transport),
    session,
    open: (listener) => {
      send = listener;
      listener(messageEvent({ reset: true, routes: [route("orders", { amplification: 1.25, clients: 1 })], ...first }));
      return { close: () => {}, again: () => {} };
    },
  });
  return { send: (fields: object) => { send(messageEvent(fields)); } };
}

test("it requests one route and shows the shared statistics until then", async () => {
  const asked: WatchRequest[] = [];
  shown({
    watch: async function* (request, signal) {
      asked.push(request);
      await forever(signal);
      yield message({});
    },
  });
  expect((await screen.findByTestId("amplification")).textContent).toBe("×1.25");
  expect(screen.getByText(/Starting detailed updates/)).toBeTruthy();
  await waitFor(() => { expect(asked).toHaveLength(1); });
  expect(asked[0]?.route).toMatchObject({ callerService: "orders", calleeService: "stock", calleeMethod: "shop.Stock/Take" });
  expect(asked[0]?.rules).toBe(false);
});

test("its own stream replaces the shared statistics", async () => {
  shown({
    watch: async function* (_, signal) {
      yield message({ reset: true, routes: [route("orders", { callsPerS: 40, attemptsPerS: 108, amplification: 2.7, clients: 1 })] });
      await forever(signal);
    },
  });
  await waitFor(() => { expect(screen.getByTestId("amplification").textContent).toBe("×2.70"); });
  expect(screen.getByTestId("verdict").textContent).toMatch(/Retry storm: ×2\.70 attempts per call/);
  expect(screen.getByText(/Detailed updates/)).toBeTruthy();
});

const agoS = (seconds: number) => timestampFromMs(Date.now() - seconds * 1000);

test("the charts begin with what was before the page was opened, and show as much of it as is wanted", async () => {
  const user = userEvent.setup();
  const past = [600, 590].map((ago, at) => ({ until: agoS(ago), span: { seconds: 10n }, callsPerS: 40, attemptsPerS: 90 - at, failedPerS: 10 }));
  shown({
    watch: async function* (_, signal) {
      yield message({ reset: true, asOf: agoS(0), routes: [route("orders")], past });
      await forever(signal);
    },
  });
  expect(await screen.findByRole("img", { name: /^Attempts\/s.*now 10.*highest 90/ })).toBeTruthy();
  expect(screen.getByRole("img", { name: /^Failed calls.*highest 25\.0 %/ })).toBeTruthy();
  await user.selectOptions(screen.getByLabelText("Charts over"), "5");
  expect(new URLSearchParams(location.search).get("minutes")).toBe("5");
});

test("without its own stream it shows the shared statistics", async () => {
  // eslint-disable-next-line require-yield -- a rejected stream sends nothing
  shown({ watch: async function* () { throw new ConnectError("too many streams", Code.ResourceExhausted); } });
  expect(await screen.findByText(/No detailed updates/)).toBeTruthy();
  expect(screen.getByText(/too many streams/)).toBeTruthy();
  expect(screen.getByTestId("amplification").textContent).toBe("×1.25");
});

test("a hidden tab has no stream of its own, and a seen one has it again", async () => {
  let open = 0;
  let begun = 0;
  shown({
    watch: async function* (_, signal) {
      open += 1;
      begun += 1;
      try {
        yield message({ reset: true, routes: [route("orders")] });
        await forever(signal);
      } finally {
        open -= 1;
      }
    },
  });
  expect(await screen.findByText(/Detailed updates/)).toBeTruthy();
  expect(open).toBe(1);
  hide(true);
  await waitFor(() => { expect(open).toBe(0); });
  hide(false);
  await waitFor(() => { expect([open, begun]).toEqual([1, 2]); });
});

test("leaving the page ends the stream", async () => {
  const user = userEvent.setup();
  let open = 0;
  shown({
    watch: async function* (_, signal) {
      open += 1;
      try {
        yield message({ reset: true, routes: [route("orders")] });
        await forever(signal);
      } finally {
        open -= 1;
      }
    },
  });
  await waitFor(() => { expect(open).toBe(1); });
  await user.click(screen.getByRole("link", { name: "Rules" }));
  await waitFor(() => { expect(open).toBe(0); });
});

test("the window of rates stays in the address", async () => {
  const user = userEvent.setup();
  const windows: bigint[] = [];
  shown({
    watch: async function* (request, signal) {
      windows.push(request.window?.seconds ?? 0n);
      await forever(signal);
      yield message({});
    },
  });
  await waitFor(() => { expect(windows).toEqual([10n]); });
  await user.selectOptions(screen.getByLabelText("Rates over"), "1 s");
  await waitFor(() => { expect(windows).toEqual([10n, 1n]); });
  expect(location.search).toMatch(/over=1$/);
});

test("every fate is there with its rate, its total and what it means", async () => {
  const fates = [
    { fate: Fate.OK, perS: 7, total: 700n },
    { fate: Fate.RETRY_BREAKER, perS: 3, total: 1_234n },
    { fate: Fate.RETRY, would: true, perS: 0, total: 5n },
    { fate: Fate.PUSHBACK, perS: 0, total: 0n },
  ];
  const blockedRetries = { share: 1, reason: "no credit" };
  shown({}, undefined, { routes: [route("orders", { fates, blockedRetries })] });
  const table = within(await screen.findByRole("table", { name: "" }));
  const row = (name: RegExp) => table.getByRole("rowheader", { name }).closest("tr")?.textContent;
  expect(row(/retry breaker/)).toMatch(/3\.0.*30\.0 %.*1,234.*no credit was left for a retry.*the services that call the caller do not retry it/s);
  expect(row(/would retry/)).toMatch(/–.*–.*5.*Observe mode/s);
  expect(screen.queryByText(/pushback/)).toBeNull();
  expect(await screen.findByText("Blocked retries: 100 % of failed calls (no credit).")).toBeTruthy();
});

test("gates say how they are set and where they stand", async () => {
  const holding = { clients: 2, breakerRefuses: 1, windowFailures: 30n, windowSuccesses: 200n };
  shown({}, undefined, { routes: [route("orders", holding)], kills: [kill("stock")] });
  const gates = within((await screen.findByRole("heading", { name: "What limits retries" })).closest("section") as HTMLElement);
  expect(await gates.findByText(/no credit for a retry at 1 of 2 processes/)).toBeTruthy();
  await waitFor(() => {
    expect(document.querySelector('[data-gate="breaker"]')?.textContent).toMatch(/30.*failures against.*200.*in 10 s.*credit: 50 successful calls pay for one failed retry/s);
  });
  expect(document.querySelector('[data-gate="kill"]')?.textContent).toMatch(/in force.*stock is down.*ann.*25 min left/s);
});

test("winner, losers, cuts with owners and bounds are shown", async () => {
  shown({});
  expect((await screen.findByTestId("winner")).textContent).toMatch(/enforce.*\* \* stock \*.*applies/s);
  const why = within(screen.getByRole("heading", { name: "Which rule applies to this route, and why" }).closest("section") as HTMLElement);
  expect(why.getByText(/its callee is less specific/).textContent).toContain("* * * *");
  expect(why.getByText("team-platform").closest("tr")?.textContent).toMatch(/retry\.max_attempts.*5 is above 2/s);
  expect(why.getByText(/sustained maximum/).textContent).toMatch(/×1\.10.*plus 3 free retries per process in 10 s/s);
  expect(why.getByText(/attempts at stock per request/).textContent).toContain("4");
  expect(why.getByText(/multiplies/)).toBeTruthy();
  expect(screen.getByRole("link", { name: "Edit the rule" }).getAttribute("href")).toBe(hrefOf("/rule", any));
  expect(screen.getByRole("link", { name: /Stop retries to stock/ }).getAttribute("href")).toBe("/kill?callee=stock");
});

test("a route without a rule leads to a proposal", async () => {
  shown({ explain: () => ({}) });
  expect((await screen.findByTestId("winner")).textContent).toMatch(/No rule applies/);
  expect(screen.getByRole("link", { name: "Propose a rule" }).getAttribute("href")).toMatch(/^\/rule\?caller=orders&.*propose=1$/);
});

test("a matching change is marked on charts and listed", async () => {
  const at = timestampFromMs(Date.now() - 60_000);
  const change = (revision: bigint, key: object) => ({ revision, at, author: "ann", reason: "drill", objects: [{ key: { kind: { case: "rule", value: key } } }] });
  const { send } = shown({
    changes: (callee) => (callee === "stock" ? [change(41n, any), change(42n, { ...any, callerService: "gateway" })] : []),
  }, undefined, { asOf: timestampFromMs(Date.now()) });
  const [link] = await screen.findAllByRole("link", { name: /rule created/ });
  expect(link?.getAttribute("href")).toBe("/history?rev=41");
  expect(link?.closest("li")?.textContent).toMatch(/ann.*drill/s);
  const marks = [...document.querySelectorAll("a.mark")];
  expect(marks.map((mark) => mark.getAttribute("href"))).toEqual(Array<string>(4).fill("/history?rev=41"));
  expect(screen.getAllByRole("img", { name: /1 change in this time/ }).length).toBeGreaterThan(0);
  send({ revision: 43n });
});

const yesterday = () => timestampFromMs(Date.now() - 26.5 * 3_600_000);
const ruleAt = (maxAttempts: number) => ({ kind: { case: "rule" as const, value: { key: any, policy: { mode: Mode.ENFORCE, retry: { maxAttempts } } } } });
const key = { kind: { case: "rule" as const, value: any } };
const loosened = { revision: 41n, author: "ben", reason: "more attempts", objects: [{ key, before: ruleAt(2), after: ruleAt(6) }] };

test("the last change of its rule stays at the top, however old: who, when, what, and the way back", async () => {
  withDialogs();
  const user = userEvent.setup();
  const killed = { revision: 44n, author: "ann", objects: [{ key: { kind: { case: "kill", value: any } } }] };
  // The server leaves out what is not asked for.
  const ofKind = (changes: object[], kind: ObjectKind) => changes.filter((change) => change !== killed || kind !== ObjectKind.RULE);
  const elsewhere = { revision: 45n, author: "ann", objects: [{ key: { kind: { case: "rule", value: { ...any, callerCluster: "batch" } } } }] };
  shown({ changes: (callee, kind) => (callee === "stock" ? ofKind([elsewhere, killed, loosened], kind).map((change) => ({ at: yesterday(), ...change })) : []) }, undefined,
    { asOf: timestampFromMs(Date.now()) });
  const last = within(await screen.findByTestId("last-change"));
  expect(screen.getByTestId("last-change").textContent.replaceAll(/\s+/g, " ")).toMatch(
    /Last rule change: 26 h ago by ben, “more attempts” .*revision 41 rule changed \* \* stock \* retry\.max_attempts 2 → 6/);
  expect(last.getByRole("link", { name: "revision 41" }).getAttribute("href")).toBe("/history?rev=41");
  expect(last.getByRole("link", { name: "* * stock *" }).getAttribute("href")).toBe(hrefOf("/rule", any));
  await user.click(last.getByRole("button", { name: /Roll back…/ }));
  expect(await screen.findByRole("heading", { name: "Roll back Rule * * stock * to revision 40?" })).toBeTruthy();
});

test("no rollback is offered for a state that is no longer kept", async () => {
  shown({ changes: () => [{ at: yesterday(), ...loosened }], oldest: 41n });
  expect(within(await screen.findByTestId("last-change")).queryByRole("button")).toBeNull();
  cleanup();
  shown({});
  await screen.findByTestId("winner");
  expect(screen.queryByTestId("last-change")).toBeNull();
});

test("where a chain of failures starts is named on the routes above, with the way there", async () => {
  const failing = { errorShare: 0.7, callsPerS: 40 };
  const below = route("stock", { ...failing, key: { callerService: "stock", callerCluster: "default", calleeService: "ledger", calleeMethod: "p.S/M" } });
  shown({}, undefined, { routes: [route("orders", failing), below, route("other", { callsPerS: 1 })] });
  const named = await screen.findByTestId("roots");
  expect(named.textContent.replaceAll(/\s+/g, " ")).toMatch(/Failures start at ledger \(stock → ledger\); 1 route upstream fails as a result: orders → stock/);
  expect(within(named).getByRole("link", { name: "stock → ledger" }).getAttribute("href")).toBe(hrefOf("/route", below.key));
});

test("a new revision is asked about at once", async () => {
  let asked = 0;
  const { send } = shown({ explain: () => { asked += 1; return explained; } });
  await waitFor(() => { expect(asked).toBe(1); });
  send({ revision: 9n });
  await waitFor(() => { expect(asked).toBe(2); });
});

test("who else repeats is named", async () => {
  const served = { firstSendsPerS: 30, envoyRepeatsPerS: 4.5 };
  shown({}, undefined, { routes: [route("orders", { served, outerLoopCallsPerS: 2, totalOuterLoopCalls: 80n, totalServingCalls: 80n, chainCoverage: 0.75 })] });
  expect((await screen.findByRole("rowheader", { name: "Retries by Envoy" })).closest("tr")?.textContent).toMatch(/▲ 4\.5.*set its retries to 0/s);
  expect(screen.getByText(/calls again after a call has failed/).textContent).toMatch(/2\.0\/s.*80 total/s);
  expect(screen.getByText(/made while the caller serves a request/).textContent).toContain("75.0 %");
});

test("a route without reports still shows its rule", async () => {
  shown({}, "/route?caller=new&cluster=default&callee=stock&method=a.B/C");
  expect((await screen.findByTestId("verdict")).textContent).toMatch(/No data/);
  expect((await screen.findByTestId("winner")).textContent).toContain("applies");
});

test.each(["/route", "/route?caller=a&cluster=default&callee=*&method=a.B/C"])("an address without an exact route is reported: %s", async (at) => {
  shown({}, at);
  expect(await screen.findByText("The address of this page does not identify a route.")).toBeTruthy();
});
