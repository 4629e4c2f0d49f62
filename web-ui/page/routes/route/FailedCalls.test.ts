// The failed calls, as a reader meets them.
import { create } from "@bufbuild/protobuf";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { cleanup, render, screen, within } from "@testing-library/svelte";
import userEvent from "@testing-library/user-event";
import { Fate } from "$wire/distribution_pb";
import { RouteFailureSchema } from "$wire/fleet_pb";
import { Code } from "$wire/policy_pb";
import { afterEach, expect, test } from "vitest";
import Failures from "./FailedCalls.svelte";

afterEach(cleanup);

const TRACE = "4bf92f3577b34da6a3ce929d0e0e4736";
const now = { seconds: 100n, nanos: 0, $typeName: "google.protobuf.Timestamp" } as const;
const failure = (seconds: bigint, call: object = {}) => create(RouteFailureSchema, {
  client: { instance: "orders-1" },
  call: {
    fate: Fate.ATTEMPTS_EXHAUSTED, code: Code.UNAVAILABLE, endedAt: { seconds }, latency: { nanos: 35_000_000 }, sends: 2, traceId: TRACE,
    attempts: [
      { sentAfter: {}, took: { nanos: 3_000_000 }, code: Code.UNAVAILABLE, detail: "not connected" },
      { sentAfter: { nanos: 20_000_000 }, hedge: true },
    ],
    ...call,
  },
} as MessageInitShape<typeof RouteFailureSchema>);
const props = (failures: ReturnType<typeof failure>[], more: object = {}) => ({ failures, now, failing: true, caller: "orders", ...more });
const text = (element: Element | undefined) => (element?.textContent ?? "").replace(/\s+/g, " ").trim();
const rows = () => screen.getAllByRole<HTMLTableRowElement>("row").filter((row) => row.classList.contains("failure"));

test("a row shows time, fate, code and process, and opens to attempts", async () => {
  render(Failures, props([failure(90n)]));
  const [row] = rows();
  expect([...(row?.cells ?? [])].map(text)).toEqual(["▸ 10 s ago, its attempts", "◆ attempts exhausted", "UNAVAILABLE", "35 ms", "2", "orders-1", TRACE]);
  const opener = screen.getByRole("button", { name: /10 s ago/ });
  expect(opener.title).toMatch(/1970/);
  const user = userEvent.setup();
  await user.tab();
  expect(document.activeElement).toBe(opener);
  await user.keyboard("{Enter}");
  expect(opener.getAttribute("aria-expanded")).toBe("true");
  const attempts = within(document.getElementById(opener.getAttribute("aria-controls") ?? "") ?? document.body).getAllByRole("listitem");
  expect(attempts.map(text)).toEqual([
    "sent at 0 ms UNAVAILABLE after 3 ms: not connected",
    "hedge at 20 ms no answer before the call ended",
  ]);
});

test("nothing moves while a row is open, and what came is one press away", async () => {
  const { rerender } = render(Failures, props([failure(90n)]));
  const user = userEvent.setup();
  await user.click(screen.getByRole("button", { name: /10 s ago/ }));
  await rerender(props([failure(99n), failure(95n), failure(90n)]));
  expect(rows()).toHaveLength(1);
  await user.click(screen.getByRole("button", { name: "Show 2 newer" }));
  expect(rows()).toHaveLength(3);
  expect(screen.getByRole("button", { name: /10 s ago/ }).getAttribute("aria-expanded")).toBe("true");
});

test("the list continues after reading", async () => {
  const { rerender } = render(Failures, props([failure(90n)]));
  const user = userEvent.setup();
  await user.hover(screen.getByText("orders-1"));
  await rerender(props([failure(99n), failure(90n)]));
  expect(rows()).toHaveLength(1);
  await user.unhover(screen.getByText("orders-1"));
  await user.pointer({ target: document.body });
  await rerender(props([failure(99n), failure(90n)]));
  expect(rows()).toHaveLength(2);
});

test("an empty list explains itself, also while calls fail", async () => {
  const { rerender } = render(Failures, props([], { failing: false }));
  screen.getByText(/No failed call since this server started/);
  await rerender(props([]));
  screen.getByText(/if the SDK of orders/);
});

test("calls without a trace say how they would get one", () => {
  render(Failures, props([failure(90n, { traceId: "" })]));
  expect(text(screen.getByText(/carry no trace/))).toContain("traceparent");
});

test("a call without an attempt is shown as such", async () => {
  render(Failures, props([failure(90n, { fate: Fate.CIRCUIT_OPEN, sends: 0, attempts: [] })]));
  await userEvent.setup().click(screen.getByRole("button", { name: /10 s ago/ }));
  screen.getByText("No attempt was sent.");
});
