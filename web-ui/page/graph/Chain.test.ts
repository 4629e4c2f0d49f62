// The chain's page against an in-memory server.
import { create } from "@bufbuild/protobuf";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError, createRouterTransport } from "@connectrpc/connect";
import { cleanup, render, screen, waitFor, within } from "@testing-library/svelte";
import userEvent from "@testing-library/user-event";
import { Fleet, GetChainResponseSchema } from "$wire/fleet_pb";
import { WhoAmIResponseSchema } from "$wire/tokens_pb";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { api } from "../api/client";
import App from "../shell/App.svelte";
import type { Session } from "../api/session";
import { messageEvent, route } from "../testing/messages";
import "../testing/pages";
import { manyServices } from "../testing/many_services";

vi.mock("uplot", () => ({ default: class { setData() {} setSize() {} destroy() {} } }));

beforeEach(() => {
  vi.stubGlobal("ResizeObserver", class { observe() {} unobserve() {} disconnect() {} });
  vi.stubGlobal("scrollTo", () => {});
  vi.stubGlobal("matchMedia", () => new EventTarget());
});
afterEach(cleanup);

const session: Session = {
  signIn: () => Promise.resolve(undefined),
  signOut: () => Promise.resolve(undefined),
  who: () => Promise.resolve(create(WhoAmIResponseSchema, {})),
};

type Answer = MessageInitShape<typeof GetChainResponseSchema>;

function shown(at: string, answer: (service: string) => Answer, routes = [route("orders")]) {
  history.replaceState(null, "", at);
  const transport = createRouterTransport(({ service }) => {
    service(Fleet, { getChain: ({ service: around }) => create(GetChainResponseSchema, answer(around)) });
  });
  return render(App, {
    api: api(transport),
    session,
    open: (listener) => {
      listener(messageEvent({ reset: true, routes }));
      return { close: () => {}, again: () => {} };
    },
  });
}

const hop = (callerService: string, calleeService: string, fields: object = {}) => ({
  callerService, calleeService, callsPerS: 40, attemptsPerS: 40, amplification: 1, routes: 1, maxAttempts: 3, chainCoverage: 1, ...fields,
});
const shop: Answer = {
  edges: [
    hop("gateway", "orders"),
    hop("orders", "stock", { attemptsPerS: 100, amplification: 2.5, routesWithoutRule: 1 }),
    hop("stock", "orders"),
  ],
  worstMeasured: { services: ["gateway", "orders", "stock"], amplification: 2.5 },
  worstPossible: {
    sends: 5n,
    hops: [
      { callerService: "gateway", calleeService: "orders", maxAttempts: 3, sends: 3n },
      { callerService: "orders", calleeService: "stock", maxAttempts: 3, sends: 5n, multiplies: true },
    ],
  },
  window: { seconds: 10n },
};

const picture = () => screen.findByRole("group", { name: /Picture of the chain/ });

test("every edge has its amplification in picture and table", async () => {
  shown("/chain", () => shop);
  const words = (await picture()).querySelector(".words");
  expect(words?.textContent).toMatch(/×1\.00.*▲×2\.50/s);
  const row = document.querySelector('table.edges tr[data-edge="orders stock"]');
  expect(row?.textContent).toMatch(/orders.*stock.*40\.0.*high.*×2\.50.*100.*3/s);
});

test("the worst path is listed hop by hop, measured and possible", async () => {
  shown("/chain", () => shop);
  expect((await screen.findByTestId("worst-measured")).textContent).toMatch(/×2\.50.*high.*at stock per request to gateway/s);
  expect(screen.getByTestId("worst-possible").textContent).toMatch(/≤ 5.*at stock per request to gateway/s);
  const possible = screen.getByTestId("worst-possible").closest("section");
  expect(possible?.textContent).toMatch(/orders → stock.*multiplies.*≤ 3 each.*≤ 5/s);
});

test.each([[4, /≤ 5.*limit 4/s], [5, undefined], [0, undefined]])("a worst path above the limit of %s is marked", async (limit, mark) => {
  shown("/chain", () => ({ ...shop, limit }));
  const possible = await screen.findByTestId("worst-possible");
  if (mark === undefined) expect(possible.textContent).not.toContain("limit");
  else expect(possible.textContent).toMatch(mark);
  expect(possible.closest("section")?.classList.contains("high")).toBe(mark !== undefined);
});

test("services that call each other in a circle are named", async () => {
  shown("/chain", () => shop);
  expect(await screen.findByText("orders → stock → orders")).toBeTruthy();
});

test("the route and its rule are one press away, and one without a rule leads to a proposal", async () => {
  const ruled = route("gateway", { rule: { callerService: "*", callerCluster: "*", calleeService: "stock", calleeMethod: "*" }, mode: 3 });
  shown("/chain", () => ({ edges: [hop("orders", "stock"), hop("gateway", "stock")] }), [route("orders"), ruled]);
  const edge = (await picture()).querySelector('[data-edge="orders stock"]');
  expect(edge?.getAttribute("href")).toBe("/route?caller=orders&cluster=default&callee=stock&method=shop.Stock%2FTake");
  const rows = within(screen.getByRole("table"));
  expect(rows.getByText("no rule").getAttribute("href")).toMatch(/^\/rule\?caller=orders&.*propose=1$/);
  expect(rows.getByText("enforce").getAttribute("href")).toBe("/rule?caller=*&cluster=*&callee=stock&method=*");
});

test("a press on a service selects it, Escape deselects it", async () => {
  const user = userEvent.setup();
  const asked: string[] = [];
  shown("/chain", (around) => {
    asked.push(around);
    return { ...shop, edges: around === "" ? shop.edges ?? [] : [hop("gateway", "orders")] };
  });
  const service = (await picture()).querySelector('[data-service="gateway"]');
  if (service === null) throw new Error("gateway is not drawn");
  await user.click(service);
  expect(location.search).toBe("?service=gateway");
  await waitFor(() => { expect(asked).toContain("gateway"); });
  await waitFor(() => { expect(screen.getByText("2 services, 1 edge")).toBeTruthy(); });
  (await picture()).querySelector<SVGAElement>('[data-service="gateway"]')?.focus();
  await user.keyboard("{Escape}");
  expect(location.search).toBe("");
});

test("the picture is one stop of the tab key and arrow keys go along the calls", async () => {
  const user = userEvent.setup();
  shown("/chain", () => shop);
  const drawn = await picture();
  const stops = [...drawn.querySelectorAll<SVGAElement>('[tabindex="0"]')];
  expect(stops.map((stop) => stop.dataset["service"])).toEqual(["gateway"]);
  stops[0]?.focus();
  await user.keyboard("{ArrowRight}");
  await waitFor(() => { expect((document.activeElement as SVGAElement).dataset["service"]).toBe("orders"); });
  await user.keyboard("{ArrowRight}");
  await waitFor(() => { expect((document.activeElement as SVGAElement).dataset["service"]).toBe("stock"); });
  await user.keyboard("{Home}");
  await waitFor(() => { expect((document.activeElement as SVGAElement).dataset["service"]).toBe("gateway"); });
});

test("new figures move no service", async () => {
  let factor = 1;
  shown("/chain", () => {
    const answer = manyServices(60);
    answer.edges.forEach((edge) => { edge.amplification *= factor; });
    return answer;
  });
  const places = () => [...document.querySelectorAll("svg.chain .service rect")].map((box) => `${box.getAttribute("x")} ${box.getAttribute("y")}`);
  await picture();
  const before = places();
  expect(before).toHaveLength(60);
  factor = 3;
  await waitFor(() => { expect(document.querySelectorAll("svg.chain .edge.high").length).toBeGreaterThan(50); }, { timeout: 8_000 });
  expect(places()).toEqual(before);
});

test("an unknown service is reported, with a link back", async () => {
  shown("/chain?service=ghost", () => { throw new ConnectError("no route from or to the service ghost is known: list the routes with `damper routes`", Code.NotFound); });
  expect(await screen.findByText("No route from or to ghost is known.")).toBeTruthy();
  expect(screen.getByText("The whole chain").getAttribute("href")).toBe("/chain");
});

test("no calls and a rejected request are reported", async () => {
  const { unmount } = shown("/chain", () => ({}));
  expect(await screen.findByText(/the chain of calls is drawn from/)).toBeTruthy();
  unmount();
  shown("/chain", () => { throw new ConnectError("ask an admin", Code.PermissionDenied); });
  expect((await screen.findByRole("alert")).textContent).toContain("Not allowed: ask an admin");
});

test("a large graph is drawn in part, and the table lists all edges", async () => {
  shown("/chain", () => manyServices(400));
  expect(await screen.findByText(/too many for one picture/)).toBeTruthy();
  expect(document.querySelectorAll("svg.chain .service").length).toBeLessThanOrEqual(120);
  expect(screen.getByText(/400 services/)).toBeTruthy();
});

const broken: Answer = {
  edges: [
    hop("gateway", "orders", { errorShare: 0.6 }),
    hop("orders", "stock", { errorShare: 0.6 }),
    hop("orders", "prices"),
  ],
};

test("failing edges differ by word and class, also where failures start", async () => {
  shown("/chain", () => broken);
  const drawn = await picture();
  const edge = (name: string) => drawn.querySelector(`[data-edge="${name}"]`);
  const classes = ["gateway orders", "orders stock", "orders prices"].map((name) => ["failing", "start"].filter((kind) => edge(name)?.classList.contains(kind)));
  expect(classes).toEqual([["failing"], ["failing", "start"], []]);
  expect(edge("orders stock")?.getAttribute("aria-label")).toMatch(/60\.0 % of its calls fail, and failures start here/);
  expect(drawn.querySelector(".words")?.textContent).toMatch(/✕ fails 60 %.*✕ start 60 %/s);
  expect(drawn.querySelector('[data-service="stock"]')?.textContent).toContain("✕ failures start here");
  expect(drawn.querySelectorAll(".service.start")).toHaveLength(1);
  expect(document.querySelector('table.edges tr[data-edge="orders stock"]')?.textContent).toContain("✕ starts here");
  expect(document.querySelector('table.edges tr[data-edge="gateway orders"]')?.textContent).toMatch(/✕ fails\s*60\.0 %/);
  expect(screen.getByTestId("roots").textContent.replaceAll(/\s+/g, " ")).toMatch(/Failures start at stock .*1 edge upstream fails as a result: gateway → orders/);
  expect(screen.getByText(/where failures start$/)).toBeTruthy();
});

test("among sixty services the one edge where failures start has its words without being asked", async () => {
  shown("/chain", () => manyServices(60, 1, "ledger"));
  const drawn = await picture();
  expect([...drawn.querySelectorAll(".service.start")].map((node) => node.getAttribute("data-service"))).toEqual(["ledger"]);
  const starts = [...drawn.querySelectorAll(".edge.start")].map((edge) => edge.getAttribute("data-edge") ?? "");
  expect(starts.length).toBeGreaterThan(0);
  expect(starts.every((name) => name.endsWith(" ledger"))).toBe(true);
  expect(drawn.querySelectorAll(".words .start")).toHaveLength(starts.length);
  expect(drawn.querySelectorAll(".edge.failing").length).toBeGreaterThan(starts.length);
});
