// The page against a real Connect client and an in-memory server.
import { create } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createRouterTransport } from "@connectrpc/connect";
import { cleanup, render, screen, waitFor, within } from "@testing-library/svelte";
import userEvent from "@testing-library/user-event";
import { Fleet } from "$wire/fleet_pb";
import type { WatchRequest, WatchResponse } from "$wire/fleet_pb";
import { Role, WhoAmIResponseSchema } from "$wire/tokens_pb";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { api } from "../api/client";
import App from "./App.svelte";
import { pageAt } from "./pages";
import { keepOpen, Wake } from "../feed/link";
import type { Open } from "../feed/open";
import type { Session } from "../api/session";
import { kill, message, route, rule } from "../testing/messages";
import "../testing/pages";

// A canvas is not there; the browser test sees the chart.
vi.mock("uplot", () => ({ default: class { setData() {} setSize() {} destroy() {} } }));

beforeEach(() => {
  history.replaceState(null, "", "/");
  vi.stubGlobal("ResizeObserver", class { observe() {} disconnect() {} });
  vi.stubGlobal("matchMedia", () => new EventTarget());
});
afterEach(cleanup);

type Watch = (request: WatchRequest, signal: AbortSignal) => AsyncIterable<WatchResponse>;

function served(watch: Watch): Open {
  const transport = createRouterTransport(({ service }) => {
    service(Fleet, { watch: (request, { signal }) => watch(request, signal) });
  });
  return (listener) => {
    const end = new AbortController();
    const wake = new Wake();
    void keepOpen(transport, listener, end.signal, wake);
    return { close: () => { end.abort(); }, again: () => { wake.again(); } };
  };
}

// A server without tokens.
const noTokens: Session = {
  signIn: () => Promise.resolve(undefined),
  signOut: () => Promise.resolve(undefined),
  who: () => Promise.resolve(create(WhoAmIResponseSchema, {})),
};

function shown(open: Open, session: Session = noTokens) {
  return render(App, { open, session, api: api(createRouterTransport(() => {})) });
}

// Sends these messages, then stays open.
function saying(...messages: WatchResponse[]): Open {
  return served(async function* (_, signal) {
    yield* messages;
    await new Promise((resolve) => { signal.addEventListener("abort", resolve); });
  });
}

test("it requests rules and shows that it waits", async () => {
  const asked = vi.fn();
  shown(served(async function* (request, signal) {
    asked(request.rules, request.interval?.seconds);
    await new Promise((resolve) => { signal.addEventListener("abort", resolve); });
    yield message({});
  }));
  expect(screen.getByText("Connecting to the control plane…")).toBeTruthy();
  expect(screen.getByTestId("liveness").textContent).toContain("connecting");
  await waitFor(() => { expect(asked).toHaveBeenCalledWith(true, 1n); });
});

test("a route reads as a multiplication and a high one is marked by a word", async () => {
  const high = route("orders", { callsPerS: 40, attemptsPerS: 108, amplification: 2.7, errorShare: 0.05 });
  shown(saying(message({ reset: true, routes: [high, route("gateway")], connectedClients: 4 })));
  const row = (await screen.findByText("orders")).closest("tr");
  expect(row?.textContent).toMatch(/40\.0.*high.*×2\.70.*108.*5\.0 %/s);
  expect(screen.getByText("gateway").closest("tr")?.textContent).not.toContain("high");
  expect(screen.getByTestId("fleet-amplification").textContent).toBe("×2.36");
  expect(screen.getByTestId("clients").textContent).toBe("4");
});

test("the charts begin with what was before the page was opened", async () => {
  const past = [{ until: timestampFromMs(Date.now() - 600_000), span: { seconds: 10n }, callsPerS: 10, attemptsPerS: 30, failedPerS: 5 }];
  shown(served(async function* () {
    yield message({ reset: true, asOf: timestampFromMs(Date.now()), routes: [route("orders")], past });
    await new Promise(() => {});
  }));
  expect(await screen.findByRole("img", { name: /^Amplification.*now ×1\.00.*highest ×3\.00/ })).toBeTruthy();
  expect(screen.getByRole("img", { name: /^Failed calls.*highest 50\.0 %/ })).toBeTruthy();
});

test("a rule shows its policy and its delivery", async () => {
  history.replaceState(null, "", "/rules");
  const lagging = rule("orders", 12n, { applied: 2, refused: 1, lackingFeatures: 1 });
  shown(saying(message({ reset: true, rules: [lagging, rule("stock", 3n)] })));
  const row = (await screen.findByText("orders")).closest("tr");
  expect(row?.textContent).toMatch(/enforce.*3.*exponential 25 ms ×2 up to 250 ms, full jitter.*credit.*12/s);
  expect(row?.textContent).toMatch(/2 of 4.*1 rejected.*1 lack features/s);
  expect(screen.getByText(/4 of 4/)).toBeTruthy();
});

test("a change while watching is marked", async () => {
  history.replaceState(null, "", "/rules");
  const first = message({ reset: true, rules: [rule("orders", 1n), rule("stock", 2n)] });
  shown(saying(first, message({ rules: [rule("orders", 3n)] })));
  const mark = await screen.findByText("changed");
  expect(mark.closest("tr")?.textContent).toContain("orders");
});

test("without rules it shows the command for the first one", async () => {
  history.replaceState(null, "", "/rules");
  shown(saying(message({ reset: true })));
  expect(await screen.findByText(/damper rules put -f -/)).toBeTruthy();
});

test("without calls it explains what will appear", async () => {
  shown(saying(message({ reset: true })));
  expect(await screen.findByText("No service has reported a call yet.")).toBeTruthy();
  expect(screen.getByTestId("verdict").textContent).toContain("No calls");
});

test("when the stream ends the data stays, with its age and the reason", async () => {
  shown(served(async function* () {
    yield message({ reset: true, routes: [route("gateway")] });
    throw new ConnectError("going down", Code.Unavailable);
  }));
  const banner = within(await screen.findByRole("status"));
  expect(await banner.findByText(/Disconnected/)).toBeTruthy();
  expect(banner.getByText(/Unavailable: going down/)).toBeTruthy();
  expect(screen.getByText("gateway")).toBeTruthy();
});

test("a store that is not the known one is shown until it is accepted", async () => {
  const problem = "the store is empty, expected revision 7";
  let accept = () => {};
  shown(served(async function* (_, signal) {
    yield message({ reset: true, unacceptedStore: { problem, knownRevision: 7n } });
    await new Promise<void>((resolve) => { accept = resolve; });
    yield message({ revision: 8n });
    await new Promise((resolve) => { signal.addEventListener("abort", resolve); });
  }));
  const banner = await screen.findByTestId("unaccepted");
  expect(banner.textContent).toMatch(/store was emptied, replaced or restored to an older state.*the store is empty, expected revision 7.*Services keep their current rules.*damper store status/s);
  accept();
  await waitFor(() => { expect(screen.queryByTestId("unaccepted")).toBeNull(); });
});

test("clients that know more than the store are counted in a banner", async () => {
  shown(saying(message({ reset: true, heldClients: 2 }), message({ revision: 2n, heldClients: 1 }), message({ revision: 3n })));
  await waitFor(() => { expect(screen.getByTestId("revision").textContent).toBe("3"); });
  expect(screen.queryByTestId("held")).toBeNull();
  cleanup();
  shown(saying(message({ reset: true, heldClients: 2 })));
  expect((await screen.findByTestId("held")).textContent).toMatch(/2 connected clients have rules that the store lacks.*damper doctor/s);
});

test("a kill switch is shown on top with reason, time and its end", async () => {
  const kills = [kill("stock", { calls: true }), ...["a", "b", "c"].map((callee) => kill(callee))];
  shown(saying(message({ reset: true, routes: [route("orders", { killed: 2 })], kills })));
  const [first] = await screen.findAllByTestId("kill");
  expect(first?.textContent).toMatch(/all calls to stock are rejected.*25 min left.*stock is down.*ann/s);
  expect(first?.textContent).toContain("damper unkill --callee 'stock'");
  expect(screen.getByText(/and 1 more kill switches/)).toBeTruthy();
  expect(screen.getByText("orders").closest("tr")?.textContent).toContain("killed");
});

test("a kill switch that ended is no longer shown", async () => {
  shown(saying(message({ reset: true, kills: [kill("stock")] }), message({ revision: 2n })));
  await waitFor(() => { expect(screen.getByTestId("revision").textContent).toBe("2"); });
  expect(screen.queryByTestId("kill")).toBeNull();
});

test("it comes back without a reload", async () => {
  let streams = 0;
  shown(served(async function* (_, signal) {
    streams += 1;
    yield message({ reset: true, routes: [route(`caller-${streams}`)] });
    if (streams > 1) await new Promise((resolve) => { signal.addEventListener("abort", resolve); });
  }));
  expect(await screen.findByText("caller-2")).toBeTruthy();
  expect(screen.queryByText("caller-1")).toBeNull();
  expect(screen.getByTestId("liveness").textContent).toContain("live");
});

test("slash finds the filter, the address holds it, Escape clears it", async () => {
  const user = userEvent.setup();
  shown(saying(message({ reset: true, routes: [route("gateway"), route("orders")] })));
  await screen.findByText("orders");
  await user.keyboard("/gate");
  expect(screen.queryByText("orders")).toBeNull();
  expect(location.search).toBe("?q=gate");
  await user.keyboard("{Escape}");
  expect(screen.getByText("orders")).toBeTruthy();
  expect(location.search).toBe("");
});

test("a heading sorts, and the address keeps the sort", async () => {
  const user = userEvent.setup();
  const open = saying(message({ reset: true, routes: [route("slow", { callsPerS: 1 }), route("busy", { callsPerS: 9 })] }));
  const { container } = shown(open);
  await user.click(await screen.findByRole("button", { name: /Calls/ }));
  expect(location.search).toBe("?sort=-calls");
  const callers = [...container.querySelectorAll("table.routes tbody th")].map((cell) => cell.textContent);
  expect(callers).toEqual(["busy", "slow"]);
});

test("ten thousand rules come in pages", async () => {
  history.replaceState(null, "", "/rules");
  const rules = Array.from({ length: 10_000 }, (_, at) => rule(`caller-${String(at).padStart(5, "0")}`, BigInt(at)));
  const { container } = shown(saying(message({ reset: true, rules })));
  expect(await screen.findByText("Page 1 of 100")).toBeTruthy();
  expect(container.querySelectorAll("table.rules tbody tr")).toHaveLength(100);
});

test("a server that wants to know who asks gets one field, and shows nothing before", async () => {
  const user = userEvent.setup();
  let signedIn = false;
  const given: string[] = [];
  const session: Session = {
    ...noTokens,
    signIn: (token) => {
      given.push(token);
      signedIn = token === "damper_a1_right";
      return Promise.resolve(signedIn ? undefined : "This token is not valid.");
    },
    who: () => Promise.resolve(create(WhoAmIResponseSchema, {
      principal: "token ann (a1)", role: Role.VIEWER, tokensRequired: true, session: true,
    })),
    signOut: () => {
      signedIn = false;
      return Promise.resolve(undefined);
    },
  };
  shown(served(async function* (_, signal) {
    if (!signedIn) throw new ConnectError("who is it?", Code.Unauthenticated);
    yield message({ reset: true, routes: [route("gateway")] });
    await new Promise((resolve) => { signal.addEventListener("abort", resolve); });
  }), session);
  const field = await screen.findByLabelText("Token");
  expect(document.activeElement).toBe(field);
  await user.type(field, "two words{Enter}");
  expect(await screen.findByText(/Invalid token/)).toBeTruthy();
  expect(given).toEqual([]);
  await user.clear(field);
  await user.type(field, "damper_a1_wrong{Enter}");
  expect(await screen.findByText(/not valid/)).toBeTruthy();
  await user.clear(field);
  await user.type(field, " damper_a1_right {Enter}");
  expect(await screen.findByText("gateway")).toBeTruthy();
  expect(screen.queryByLabelText("Token")).toBeNull();
  expect((await screen.findByTestId("who")).textContent).toMatch(/ann.*viewer/s);
  await user.click(screen.getByRole("button", { name: "Sign out" }));
  expect(await screen.findByLabelText("Token")).toBeTruthy();
  expect(screen.queryByText("gateway")).toBeNull();
});

test("when the token is revoked what was shown goes away", async () => {
  let revoke = () => {};
  shown(served(async function* () {
    yield message({ reset: true, routes: [route("gateway")] });
    await new Promise<void>((resolve) => { revoke = resolve; });
    throw new ConnectError("revoked", Code.Unauthenticated);
  }));
  expect(await screen.findByText("gateway")).toBeTruthy();
  expect(screen.getByRole("navigation")).toBeTruthy();
  revoke();
  expect(await screen.findByLabelText("Token")).toBeTruthy();
  expect(screen.queryByText("gateway")).toBeNull();
  expect(screen.queryByRole("navigation")).toBeNull();
  expect(screen.getByTestId("liveness").textContent).toContain("signed out");
});

test("a part of the fleet is not taken for the whole", async () => {
  shown(saying(message({ reset: true, missingReplicas: ["box-7"] })));
  expect(await screen.findByText(/Unreachable: box-7/)).toBeTruthy();
});

test("a page whose code cannot be loaded shows it", async () => {
  const rules = pageAt("/rules");
  if (rules === undefined) throw new Error("there is no page of rules");
  vi.spyOn(rules, "load").mockRejectedValue(new TypeError("no connection"));
  history.replaceState(null, "", "/rules");
  shown(saying(message({ reset: true })));
  expect((await screen.findByRole("alert")).textContent).toContain("Cannot load this page");
});
