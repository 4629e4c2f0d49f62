// The answer at the top against an in-memory server: what storms, what is stopped, where failures start.
import { cleanup, screen } from "@testing-library/svelte";
import { afterEach, expect, test, vi } from "vitest";
import { shownAt } from "../../testing/app";
import { kill, route } from "../../testing/messages";
import { verdict } from "../../statistics/verdict";

vi.mock("uplot", () => ({ default: class { setData() {} setSize() {} destroy() {} } }));
afterEach(cleanup);

const between = (callerService: string, calleeService: string, fields: object = {}) =>
  route(callerService, { key: { callerService, callerCluster: "default", calleeService, calleeMethod: "p.S/M" }, ...fields });
const storm = { callsPerS: 40, attemptsPerS: 108, amplification: 2.7 };
const failing = { callsPerS: 40, attemptsPerS: 40, errorShare: 0.7 };
const awaited = { awaitedKill: kill("stock").key, killed: 1, clients: 1 };

const text = async () => (await screen.findByTestId("verdict")).textContent.replaceAll(/\s+/g, " ").trim();

test("a killed storm is shown as stopped until confirmed, else as a storm", () => {
  expect(verdict([route("orders", storm)]).level).toBe("storm");
  expect(verdict([route("orders", { ...storm, ...awaited, errorShare: 0.5 })]).level).toBe("stopped");
  expect(verdict([route("orders", { ...storm, killed: 1, clients: 1 })]).level).toBe("storm");
  expect(verdict([route("orders", { ...storm, ...awaited }), route("gateway", storm)])).toMatchObject({ level: "storm", storming: { length: 1 }, stopped: { length: 1 } });
});

test("what stops a storm is named, with the way to it", async () => {
  shownAt("/", () => {}, { routes: [route("orders", { ...storm, ...awaited })], kills: [kill("stock")] });
  expect(await text()).toMatch(/Retry storm stopped, verifying orders → stock by kill \* \* stock \*\. Rates lag by about 10 s/);
  expect(screen.queryByText(/Stop retries to stock/)).toBeNull();
  expect(screen.getByRole("link", { name: "* * stock *" }).getAttribute("href")).toBe("/kill");
});

test("the link to stop a storm contains the reason", async () => {
  shownAt("/", () => {}, { routes: [route("orders", storm), route("gateway", { ...storm, attemptsPerS: 90, amplification: 2.25 })] });
  const link = await screen.findByRole("link", { name: /Stop retries to stock/ });
  expect(new URL(link.getAttribute("href") ?? "", "http://page").searchParams.get("why")).toBe("Retry storm: orders → stock ×2.70 and 1 more route, 118 retries/s");
});

test("of a chain of failures the bottom is named, and what is above fails as a result", async () => {
  shownAt("/", () => {}, { routes: [between("web", "orders", failing), between("orders", "stock", failing), between("stock", "ledger", failing)] });
  expect(await text()).toMatch(/3 routes failing.*Failures start at ledger \(stock → ledger\); 2 routes upstream fail as a result: web → orders, orders → stock\.$/);
  const named = screen.getByTestId("roots");
  expect([...named.querySelectorAll("a")].map((link) => link.getAttribute("href"))).toEqual([
    "/chain?service=ledger",
    "/route?caller=stock&cluster=default&callee=ledger&method=p.S%2FM",
    "/route?caller=web&cluster=default&callee=orders&method=p.S%2FM",
    "/route?caller=orders&cluster=default&callee=stock&method=p.S%2FM",
  ]);
});

test("services that fail each other are named as a circle", async () => {
  shownAt("/", () => {}, { routes: [between("web", "orders", failing), between("orders", "stock", failing), between("stock", "orders", failing)] });
  expect(await text()).toMatch(/Failures start in a cycle: orders, stock/);
});

test("a failing route is marked by a word, and where nothing fails no start is named", async () => {
  shownAt("/", () => {}, { routes: [route("orders", { errorShare: 0.05 }), route("gateway", failing)] });
  expect((await screen.findByText("gateway")).closest("tr")?.textContent).toMatch(/✕ fails\s*70\.0 %/);
  expect(screen.getByText("orders").closest("tr")?.textContent).not.toContain("fails");
  cleanup();
  shownAt("/", () => {}, { routes: [route("orders", { errorShare: 0.05 })] });
  expect(await text()).toContain("No retry storm");
  expect(screen.queryByTestId("roots")).toBeNull();
});

test("minor failures are named if nothing is worse", async () => {
  shownAt("/", () => {}, { routes: [route("orders", { callsPerS: 40, errorShare: 0.06 }), route("gateway", { callsPerS: 5, errorShare: 0.02 })] });
  expect(await text()).toMatch(/No retry storm Every route sends about one attempt per call\. Most failures: orders → stock, 6\.0 % of 40\.0 calls\/s\./);
  cleanup();
  shownAt("/", () => {}, { routes: [route("orders", { callsPerS: 5, errorShare: 0.02 })] });
  expect(await text()).toMatch(/per call\.$/);
});

test("ten thousand rules have a separator", async () => {
  const rules = Array.from({ length: 10_000 }, (_, at) => ({ rule: { key: { callerService: `s${at}`, callerCluster: "*", calleeService: "stock", calleeMethod: "*" } } }));
  shownAt("/", () => {}, { routes: [route("orders")], rules, connectedClients: 1200 });
  expect(await screen.findByRole("link", { name: "10,000" })).toBeTruthy();
  expect(screen.getByTestId("clients").textContent).toBe("1,200");
});
