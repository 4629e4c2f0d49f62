// Permissions, and the name that an unproven identity must enter.
import { cleanup, screen, waitFor, within } from "@testing-library/svelte";
import userEvent from "@testing-library/user-event";
import { create } from "@bufbuild/protobuf";
import { Severity } from "$wire/admin_pb";
import { Fleet } from "$wire/fleet_pb";
import { Rules } from "$wire/rules_pb";
import type { PutRuleRequest } from "$wire/rules_pb";
import { Role, WhoAmIResponseSchema } from "$wire/tokens_pb";
import { afterEach, expect, test, vi } from "vitest";
import { Me } from "./identity.svelte";
import { elsewhere } from "../shell/other_servers";
import { shownAt } from "../testing/app";
import { rule } from "../testing/messages";
import { ReplicaSchema } from "$wire/fleet_pb";

vi.mock("uplot", () => ({ default: class { setData() {} setSize() {} destroy() {} } }));
afterEach(() => { cleanup(); sessionStorage.clear(); });

const NAMES = { callerService: "shop", callerCluster: "*", calleeService: "stock", calleeMethod: "*" };

async function known(fields: object): Promise<Me> {
  const me = new Me({
    signIn: () => Promise.resolve(undefined), signOut: () => Promise.resolve(undefined),
    who: () => Promise.resolve(create(WhoAmIResponseSchema, { tokensRequired: true, principal: "token kim (1)", ...fields })),
  });
  await me.ask();
  return me;
}

test("each role may write as in docs/security.md", async () => {
  const may = async (role: Role, scope = {}) => {
    const me = await known({ role, scope });
    return (["rule", "guard", "kill", "everything"] as const).filter((what) => me.refusal(what, [NAMES]) === undefined);
  };
  expect(await may(Role.VIEWER)).toEqual([]);
  expect(await may(Role.EDITOR)).toEqual(["rule"]);
  expect(await may(Role.OPERATOR)).toEqual(["rule", "guard", "kill", "everything"]);
  expect(await may(Role.OPERATOR, { callers: ["shop"] })).toEqual(["rule", "guard", "kill"]);
  expect(await may(Role.EDITOR, { callers: ["sh*"], callees: ["st*"] })).toEqual(["rule"]);
  expect(await may(Role.EDITOR, { callers: ["other"] })).toEqual([]);
  const scoped = await known({ role: Role.EDITOR, scope: { callers: ["sh*"] } });
  expect(scoped.refusal("rule", [{ ...NAMES, callerService: "*" }])).toContain("scope");
});

const finding = { code: "breaker_off", severity: Severity.DANGER, subject: "s", field: "policy.retry_breaker", message: "is off" };
const worse = { ...finding, code: "retries_many", message: "5 attempts" };

function edited(who: object) {
  const written: PutRuleRequest[] = [];
  shownAt("/rule?caller=orders&cluster=*&callee=stock&method=*", ({ service }) => {
    service(Rules, {
      getRule: () => rule("orders", 7n).rule ?? {},
      judgeRule: () => ({ findings: [finding] }),
      putRule: (request) => {
        if (request.options?.validateOnly !== true) written.push(request);
        return { rule: request.rule ?? {}, revision: 8n, findings: request.rule?.policy?.retry?.maxAttempts === 5 ? [finding, worse] : [finding] };
      },
    });
    service(Fleet, { async *watchConvergence() { yield { done: true }; } });
  }, {}, who);
  return written;
}

test("a viewer sees the findings of a rule and nothing that can be pressed or typed", async () => {
  edited({ principal: "token kim (1)", role: Role.VIEWER, tokensRequired: true });
  expect((await screen.findByTestId("read-only")).textContent).toContain("your role is viewer; required role: editor");
  expect(await screen.findByText(/is off/)).toBeTruthy();
  expect(screen.getByLabelText<HTMLInputElement>(/Max attempts/).disabled).toBe(true);
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Delete the rule…" }).disabled).toBe(true);
});

async function change(user: ReturnType<typeof userEvent.setup>): Promise<HTMLElement> {
  const field = await screen.findByRole("textbox", { name: /Max attempts/ });
  await user.clear(field);
  await user.type(field, "5");
  await screen.findByTestId("caused");
  await user.click(screen.getByRole("button", { name: "Review 1 change…" }));
  return screen.getByRole("dialog");
}

test("the review separates warnings caused by the change", async () => {
  const user = userEvent.setup();
  edited({ principal: "token kim (1)", role: Role.ADMIN, tokensRequired: true });
  const dialog = await change(user);
  expect(document.activeElement?.textContent).toBe("Save this change?");
  expect(dialog.querySelector("h2 + table.diff")?.textContent).toMatch(/max_attempts.*3.*5/s);
  expect(within(dialog).getByTestId("caused").textContent).toMatch(/5 attempts/);
  expect(within(dialog).getByTestId("caused").textContent).not.toMatch(/is off/);
  expect(within(dialog).getByTestId("kept").textContent).toMatch(/1 warning from before this change.*is off/s);
});

test("where no token proves it a name and a reason are required", async () => {
  const user = userEvent.setup();
  const written = edited({});
  const dialog = within(await change(user));
  await user.click(dialog.getByRole("button", { name: "Save" }));
  await user.type(dialog.getByLabelText("Reason (required)"), "sale");
  await user.click(dialog.getByRole("button", { name: "Save" }));
  expect(written).toHaveLength(0);
  await user.type(dialog.getByLabelText("Your name (required)"), "kim");
  await user.click(dialog.getByRole("button", { name: "Save" }));
  await waitFor(() => { expect(written.map(({ options }) => [options?.author, options?.reason])).toEqual([["kim", "sale"]]); });
});

test("a draft survives a reload until it is discarded", async () => {
  const user = userEvent.setup();
  const who = { principal: "token kim (1)", role: Role.ADMIN, tokensRequired: true };
  edited(who);
  await change(user);
  cleanup();
  edited(who);
  expect((await screen.findByTestId("restored")).textContent).toContain("Unsaved changes restored");
  expect(screen.getByLabelText<HTMLInputElement>(/Max attempts/).value).toBe("5");
  await user.click(screen.getByRole("button", { name: "Discard changes" }));
  cleanup();
  edited(who);
  expect((await screen.findByLabelText<HTMLInputElement>(/Max attempts/)).value).toBe("3");
  expect(screen.queryByTestId("restored")).toBeNull();
});

test("of the other servers those are offered that a browser can follow", () => {
  const replica = (address: string, self = false) => create(ReplicaSchema, { address, self });
  const all = [replica("https://b:7600"), replica("https://a:7600/"), replica("https://own:1", true), replica("not an address"), replica("https://page:1")];
  expect(elsewhere(all, "https://page:1")).toEqual(["https://a:7600", "https://b:7600"]);
});
