// Routes without rules against an in-memory server.
import { Code, ConnectError } from "@connectrpc/connect";
import { cleanup, screen, within } from "@testing-library/svelte";
import userEvent from "@testing-library/user-event";
import { Mode } from "$wire/policy_pb";
import { Rules } from "$wire/rules_pb";
import type { ProposeRuleRequest } from "$wire/rules_pb";
import { afterEach, expect, test, vi } from "vitest";
import { route } from "../../testing/messages";
import { shownAt } from "../../testing/app";

vi.mock("uplot", () => ({ default: class { setData() {} setSize() {} destroy() {} } }));
afterEach(cleanup);

const RULE = { callerService: "*", callerCluster: "*", calleeService: "stock", calleeMethod: "*" };

function shown(routes: object[], propose?: (request: ProposeRuleRequest) => object) {
  shownAt("/uncovered", ({ service }) => {
    service(Rules, { proposeRule: (request) => propose?.(request) ?? {} });
  }, { routes });
}

test("only routes without a rule are listed, those that fail most first", async () => {
  shown([route("covered", { rule: RULE }), route("calm"), route("failing", { errorShare: 0.25, totalServingCalls: 1n, chainCoverage: 1 })]);
  await screen.findByText("failing");
  const rows = screen.getAllByRole("row").slice(1).map((row) => row.textContent);
  expect(rows).toHaveLength(2);
  expect(rows[0]).toMatch(/failing.*10\.0.*2\.5.*25\.0 %.*100 %.*none/s);
  expect(screen.getByText(/20\.0 of 30\.0 calls\/s match no rule/)).toBeTruthy();
});

test("who else repeats is named, most first", async () => {
  shown([route("orders", { served: { grpcRepeatsPerS: 1, envoyRepeatsPerS: 3 }, outerLoopCallsPerS: 2 })]);
  const row = (await screen.findByText("orders")).closest("tr");
  expect(row?.textContent).toMatch(/Envoy 3\.0\/s.*a loop in the caller 2\.0\/s.*gRPC 1\.0\/s/s);
});

test("a rule for every route is reported", async () => {
  shown([route("covered", { rule: RULE })]);
  expect(await screen.findByText("Every known route has a rule.")).toBeTruthy();
});

test("a proposal comes with its reasons and leads to the editor", async () => {
  const user = userEvent.setup();
  const asked: ProposeRuleRequest[] = [];
  shown([route("orders")], (request) => {
    asked.push(request);
    return {
      rule: { key: request.key, policy: { mode: Mode.OBSERVE, retry: { maxAttempts: 3 } } },
      reasons: ["based on 500 calls", "policy.retry.max_attempts: 3, the default"],
    };
  });
  await user.click(await screen.findByRole("button", { name: /Propose a rule for orders default stock/ }));
  const dialog = within(screen.getByRole("dialog"));
  expect(await dialog.findByText("based on 500 calls")).toBeTruthy();
  expect(dialog.getByTestId("difference").textContent).toMatch(/mode.*observe.*max_attempts.*3/s);
  expect(asked[0]?.key).toMatchObject({ callerService: "orders", callerCluster: "default", calleeMethod: "shop.Stock/Take" });
  await user.click(dialog.getByRole("button", { name: "Open in the editor" }));
  expect(location.pathname).toBe("/rule");
  expect(new URLSearchParams(location.search).get("propose")).toBe("1");
  expect(new URLSearchParams(location.search).get("caller")).toBe("orders");
});

test("where nothing can be proposed the server's words say why", async () => {
  const user = userEvent.setup();
  shown([route("orders")], () => { throw new ConnectError("nothing was measured", Code.FailedPrecondition); });
  await user.click(await screen.findByRole("button", { name: /Propose a rule/ }));
  expect(await screen.findByText(/nothing was measured/)).toBeTruthy();
  expect(screen.getByRole("button", { name: "Open in the editor" }).hasAttribute("disabled")).toBe(true);
});
