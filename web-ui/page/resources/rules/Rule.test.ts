// The editor of a rule against an in-memory server: what a change does to the bounds.
import { create } from "@bufbuild/protobuf";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { cleanup, screen, within } from "@testing-library/svelte";
import userEvent from "@testing-library/user-event";
import { Fleet } from "$wire/fleet_pb";
import { Prediction_Callee as Callee, Rules, RuleSchema } from "$wire/rules_pb";
import type { DeleteRuleRequest, WhatIfRequest, WhatIfResponseSchema } from "$wire/rules_pb";
import { afterEach, expect, test, vi } from "vitest";
import { rule } from "../../testing/messages";
import { shownAt } from "../../testing/app";

vi.mock("uplot", () => ({ default: class { setData() {} setSize() {} destroy() {} } }));
afterEach(() => {
  cleanup();
  sessionStorage.clear();
});

const bounds = (maxAttempts: number, sends: bigint) => ({
  bound: { maxAttempts, steadyAttemptsPerCall: 1.1, window: { seconds: 10n } },
  chain: { sends, hops: [{ callerService: "shop", calleeService: "cart" }, { callerService: "cart", calleeService: "stock" }] },
});

type Answer = MessageInitShape<typeof WhatIfResponseSchema>;
const nothing = (): Answer | Promise<Answer> => ({});

function shown(answer = nothing) {
  const stored = create(RuleSchema, rule("orders", 7n).rule);
  const deletions: DeleteRuleRequest[] = [];
  const questions: WhatIfRequest[] = [];
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
      whatIf: (request) => {
        questions.push(request);
        return answer();
      },
    });
    service(Fleet, { async *watchConvergence() { yield { done: true, affected: 2, acknowledged: 2 }; } });
  });
  return { deletions, questions };
}

async function attempts(): Promise<HTMLElement> {
  const field = await screen.findByRole("textbox", { name: /Max attempts/ });
  expect(screen.queryByTestId("amplified")).toBeNull();
  return field;
}

test("higher amplification is shown while typing and in the review", async () => {
  const user = userEvent.setup();
  shown();
  const field = await attempts();
  await user.clear(field);
  await user.type(field, "4");
  const raised = /▲ Up:\s+Attempts on this hop at most 3 →to 4 per call.*▲ Up:\s+Attempts along shop → cart → stock at most 5 →to 6 per request/s;
  expect((await screen.findByTestId("amplified")).textContent).toMatch(raised);
  await user.click(screen.getByRole("button", { name: "Review 1 change…" }));
  expect(within(screen.getByRole("dialog")).getByTestId("amplified").textContent).toMatch(raised);
});

test("a retry breaker without settings of its own is shown as on", async () => {
  const user = userEvent.setup();
  shown();
  await attempts();
  const box = screen.getByRole("checkbox", { name: "Retry breaker: custom settings" });
  const section = box.closest("fieldset");
  const legend = () => section?.querySelector("legend")?.textContent;
  expect(legend()).not.toContain("on (defaults)");
  await user.click(box);
  expect(legend()).toContain("on (defaults)");
});

test("unchanged amplification is not shown", async () => {
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

test("the effect of a deletion is shown before it", async () => {
  const user = userEvent.setup();
  const { deletions } = shown();
  await attempts();
  await user.click(screen.getByRole("button", { name: "Delete the rule…" }));
  const dialog = within(screen.getByRole("dialog"));
  expect((await dialog.findByTestId("amplified")).textContent).toMatch(/▼ Down:.*3 →to 1.*▼ Down:.*5 →to 3/s);
  await user.click(dialog.getByRole("button", { name: "Delete" }));
  expect(await screen.findByText("The rule was deleted.")).toBeTruthy();
  expect(deletions.map(({ options }) => options?.validateOnly)).toEqual([true, false]);
});

async function reviewed(user: ReturnType<typeof userEvent.setup>): Promise<HTMLElement> {
  const field = await attempts();
  await user.clear(field);
  await user.type(field, "4");
  await user.click(await screen.findByRole("button", { name: "Review 1 change…" }));
  return within(screen.getByRole("dialog")).getByRole("region", { name: "What would happen" });
}

test("the review predicts what the typed rule would do, and nothing is written for it", async () => {
  const user = userEvent.setup();
  const side = (attemptsPerS: number, successShare: number) => ({ attemptsPerS, attemptsPerCall: attemptsPerS / 10, successShare });
  const { questions } = shown(() => ({
    routes: [{ callsPerS: 10 }],
    together: [
      { callee: Callee.AS_MEASURED, before: side(10, 0.9), after: side(11, 0.99) },
      { callee: Callee.OUTAGE, before: side(10, 0), after: side(40, 0) },
    ],
  }));
  const section = within(await reviewed(user));
  const outage = await section.findByRole("row", { name: /in total outage/ });
  expect(outage.textContent).toMatch(/10\.0\s*40\.0\s*▲ \+300 %\s*0 %\s*0 %/);
  expect(section.getByRole("row", { name: /^as measured/ }).textContent).toMatch(/10\.0\s*11\.0\s*\+10 %\s*90\.0 %\s*99\.0 %/);
  expect(questions).toHaveLength(1);
  const put = questions[0]?.changes[0]?.kind;
  expect(put?.case === "put" && put.value.policy?.retry?.maxAttempts).toBe(4);
});

test("a removal is predicted, too", async () => {
  const user = userEvent.setup();
  const { questions } = shown();
  await attempts();
  await user.click(screen.getByRole("button", { name: "Delete the rule…" }));
  expect(await screen.findByText("This does not change the policy of any route.")).toBeTruthy();
  expect(questions.map(({ changes }) => changes[0]?.kind.case)).toEqual(["delete"]);
});

test("without calls or an answer the review allows saving", async () => {
  const user = userEvent.setup();
  let say: (answer: Answer) => void = () => {};
  shown(() => new Promise((resolve) => { say = resolve; }));
  expect((await reviewed(user)).textContent).toContain("Predicting the effect from the calls of the last minute…");
  say({ withoutTraffic: [{}], withoutTrafficTotal: 1 });
  expect(await screen.findByText(/No affected call was made in the last minute/)).toBeTruthy();
  cleanup();
  shown(() => { throw new ConnectError("the server is busy", Code.ResourceExhausted); });
  await reviewed(user);
  expect(await screen.findByText("No prediction: the server is busy")).toBeTruthy();
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Save" }).disabled).toBe(false);
});
