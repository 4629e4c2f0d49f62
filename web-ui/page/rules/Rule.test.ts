// The editor of a rule against an in-memory server: what a change does to the bounds.
import { create } from "@bufbuild/protobuf";
import { cleanup, screen, within } from "@testing-library/svelte";
import userEvent from "@testing-library/user-event";
import { Fleet } from "$wire/fleet_pb";
import { Rules, RuleSchema } from "$wire/rules_pb";
import type { DeleteRuleRequest } from "$wire/rules_pb";
import { afterEach, expect, test, vi } from "vitest";
import { rule } from "../testing";
import { shownAt } from "../standin";

vi.mock("uplot", () => ({ default: class { setData() {} setSize() {} destroy() {} } }));
afterEach(cleanup);

const bounds = (maxAttempts: number, sends: bigint) => ({
  bound: { maxAttempts, steadyAttemptsPerCall: 1.1, window: { seconds: 10n } },
  chain: { sends, hops: [{ callerService: "shop", calleeService: "cart" }, { callerService: "cart", calleeService: "stock" }] },
});

function shown() {
  const stored = create(RuleSchema, rule("orders", 7n).rule);
  const deletions: DeleteRuleRequest[] = [];
  shownAt("/rule?caller=orders&cluster=*&callee=stock&method=*", ({ service }) => {
    service(Rules, {
      getRule: () => stored,
      putRule: ({ rule: typed }) => {
        const attempts = typed?.policy?.retry?.maxAttempts ?? 3;
        return { ...(typed && { rule: typed }), before: bounds(3, 5n), after: bounds(attempts, BigInt(attempts + 2)) };
      },
      deleteRule: (request) => {
        deletions.push(request);
        return { revision: 8n, before: bounds(3, 5n), after: bounds(1, 3n) };
      },
    });
    service(Fleet, { async *watchConvergence() { yield { done: true, affected: 2, acknowledged: 2 }; } });
  });
  return { deletions };
}

async function attempts(): Promise<HTMLElement> {
  const field = await screen.findByRole("textbox", { name: /Attempts at most/ });
  expect(screen.queryByTestId("amplified")).toBeNull();
  return field;
}

test("what a change raises on the hop and along the chain is said while typing, and in the review", async () => {
  const user = userEvent.setup();
  shown();
  const field = await attempts();
  await user.clear(field);
  await user.type(field, "4");
  const said = /▲ Up:\s+Attempts on this hop at most 3 →to 4 per call.*▲ Up:\s+At the end of the worst chain shop → cart → stock: 5 →to 6 sends/s;
  expect((await screen.findByTestId("amplified")).textContent).toMatch(said);
  await user.click(screen.getByRole("button", { name: "Review 1 change…" }));
  expect(within(screen.getByRole("dialog")).getByTestId("amplified").textContent).toMatch(said);
});

test("a change that adds nothing is not said to", async () => {
  const user = userEvent.setup();
  shown();
  const field = await attempts();
  await user.clear(field);
  await user.type(field, "2");
  expect((await screen.findByTestId("amplified")).textContent).toMatch(/▼ Down:.*3 →to 2.*▼ Down:.*5 →to 4/s);
  await user.clear(field);
  await user.type(field, "3");
  await vi.waitFor(() => { expect(screen.queryByTestId("amplified")).toBeNull(); });
});

test("what a removal comes to is said before it is done", async () => {
  const user = userEvent.setup();
  const { deletions } = shown();
  await attempts();
  await user.click(screen.getByRole("button", { name: "Delete the rule…" }));
  const dialog = within(screen.getByRole("dialog"));
  expect((await dialog.findByTestId("amplified")).textContent).toMatch(/▼ Down:.*3 →to 1.*▼ Down:.*5 →to 3/s);
  await user.click(dialog.getByRole("button", { name: "Delete" }));
  expect(await screen.findByText("The rule is removed.")).toBeTruthy();
  expect(deletions.map(({ options }) => options?.validateOnly)).toEqual([true, false]);
});
