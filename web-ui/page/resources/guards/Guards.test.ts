// Guards against an in-memory server.
import { create, toBinary } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { cleanup, screen, waitFor, within } from "@testing-library/svelte";
import userEvent from "@testing-library/user-event";
import { BadRequestSchema } from "$gen/google/rpc/error_details_pb";
import { Severity } from "$wire/admin_pb";
import { Fleet } from "$wire/fleet_pb";
import { Guards, GuardSchema, HedgeCeiling } from "$wire/guards_pb";
import type { Guard, PutGuardRequest } from "$wire/guards_pb";
import { Rules } from "$wire/rules_pb";
import { afterEach, expect, test, vi } from "vitest";
import { messageEvent } from "../../testing/messages";
import { shownAt } from "../../testing/app";

vi.mock("uplot", () => ({ default: class { setData() {} setSize() {} destroy() {} } }));
afterEach(cleanup);

const KEY = { callerService: "*", callerCluster: "*", calleeService: "stock", calleeMethod: "*" };
const AT = "/guard?caller=*&cluster=*&callee=stock&method=*";

function guard(ceiling: object, revision: bigint, fields: object = {}): Guard {
  return create(GuardSchema, { key: KEY, ceiling, revision, owner: "team-stock", updatedBy: "lee", ...fields });
}

interface Served {
  now?: () => Guard;
  put?: (request: PutGuardRequest) => object;
}

function shown(at: string, { now = () => guard({ maxAttempts: 3 }, 7n), put }: Served = {}) {
  const asked: PutGuardRequest[] = [];
  const { send } = shownAt(at, ({ service }) => {
    service(Guards, {
      listGuards: () => ({ guards: [now()], total: 1n }),
      getGuard: () => now(),
      putGuard: (request) => {
        asked.push(request);
        return put?.(request) ?? { guard: { ...request.guard, revision: 21n }, revision: 21n, changed: true };
      },
    });
    service(Rules, { whatIf: () => ({ withoutTraffic: [{ key: KEY, guard: true }], withoutTrafficTotal: 1 }) });
    service(Fleet, { async *watchConvergence() { yield { done: true, affected: 2, acknowledged: 2 }; } });
  });
  const written = () => asked.filter(({ options }) => options?.validateOnly !== true);
  return { send, asked, written };
}

async function reviewed(user: ReturnType<typeof userEvent.setup>) {
  const review = screen.getByRole("button", { name: "Review and save…" });
  await waitFor(() => { expect(review.hasAttribute("disabled")).toBe(false); });
  await user.click(review);
  return within(screen.getByRole("dialog"));
}

async function save(user: ReturnType<typeof userEvent.setup>): Promise<void> {
  await user.dblClick((await reviewed(user)).getByRole("button", { name: "Save" }));
}

test("the list shows each limit of a guard", async () => {
  const ceiling = { maxAttempts: 2, hedge: HedgeCeiling.FORBID, codes: { kind: { case: "allow", value: { codes: [] } } }, repeatLimit: { ratio: 0.2 } };
  shown("/guards", { now: () => guard(ceiling, 7n) });
  const row = (await screen.findByText("team-stock")).closest("tr");
  expect(row?.textContent).toMatch(/stock.*2.*no hedges.*none.*–.*–.*0\.2 per first attempt, observe.*team-stock.*7/s);
});

test("the editor lists the rules that the guard limits while typing", async () => {
  const user = userEvent.setup();
  const finding = { code: "guard_cuts", severity: Severity.WARNING, subject: "orders * stock *", message: "3 is more than 1" };
  const { asked } = shown(AT, { put: ({ guard }) => ({ findings: guard?.ceiling?.maxAttempts === 1 ? [finding] : [], reach: { routes: 2 } }) });
  expect(await screen.findByText("None.")).toBeTruthy();
  const field = screen.getByLabelText(/Max attempts/);
  await user.clear(field);
  await user.type(field, "1");
  expect(await screen.findByText(/3 is more than 1/)).toBeTruthy();
  expect(screen.getByTestId("cuts").textContent).toBe("1");
  expect(screen.getByRole("link", { name: "orders * stock *" }).getAttribute("href")).toContain("/rule?caller=orders");
  expect(asked.every(({ options }) => options?.validateOnly)).toBe(true);
});

test.each([[true, { repeatLimit: { ratio: 0.2 } }], [false, {}]])("only a guard with a retry limit notes that it is not predicted: %s", async (isShown, limit) => {
  const user = userEvent.setup();
  shown(AT, { now: () => guard({ maxAttempts: 3, ...limit }, 7n) });
  const field = await screen.findByLabelText(/Max attempts/);
  await user.clear(field);
  await user.type(field, "2");
  const section = (await reviewed(user)).getByRole("region", { name: "What would happen" });
  expect(await within(section).findByText(/No affected call was made in the last minute/)).toBeTruthy();
  expect(section.textContent.includes("The prediction ignores the retry limits in the guards of called services.")).toBe(isShown);
});

test("what is written names the revision that was edited, and keeps the owner and all else", async () => {
  const user = userEvent.setup();
  const ceiling = { maxAttempts: 3, hedge: HedgeCeiling.FORBID, repeatLimit: { min: 5 }, minPerAttemptTimeout: { nanos: 250_000_000 } };
  const { written } = shown(AT, { now: () => guard(ceiling, 7n) });
  const field = await screen.findByLabelText(/Max attempts/);
  await user.clear(field);
  await user.type(field, "2");
  await save(user);
  expect(await screen.findByTestId("convergence")).toBeTruthy();
  expect(written()).toHaveLength(1);
  expect(written()[0]).toMatchObject({ expectedRevision: 7n, guard: { owner: "team-stock", ceiling: { ...ceiling, maxAttempts: 2 } } });
});

test("a concurrent change is shown, and the draft is kept", async () => {
  const user = userEvent.setup();
  let now = guard({ maxAttempts: 3 }, 7n);
  const { written } = shown(AT, {
    now: () => now,
    put: ({ options, expectedRevision }) => {
      if (options?.validateOnly || expectedRevision === 9n) return { guard: guard({ maxAttempts: 2 }, 10n), revision: 10n };
      now = guard({ maxAttempts: 1, hedge: HedgeCeiling.FORBID }, 9n, { updatedBy: "ann" });
      const theirs = { type: GuardSchema.typeName, value: toBinary(GuardSchema, now) };
      throw Object.assign(new ConnectError("is at revision 9", Code.Aborted), { details: [theirs] });
    },
  });
  const field = await screen.findByLabelText<HTMLInputElement>(/Max attempts/);
  await user.clear(field);
  await user.type(field, "2");
  await save(user);
  const conflict = within(await screen.findByTestId("conflict"));
  expect(conflict.getByText(/ann changed this guard meanwhile/)).toBeTruthy();
  expect(conflict.getByTestId("difference").textContent).toMatch(/Original.*Now.*Yours.*max_attempts.*3.*1.*2/s);
  expect(field.value).toBe("2");
  await user.click(conflict.getByRole("button", { name: "Keep my changes" }));
  expect(field.value).toBe("2");
  expect(screen.getByLabelText<HTMLSelectElement>(/Hedges/).value).toBe("HEDGE_CEILING_FORBID");
  await save(user);
  await waitFor(() => { expect(written()).toHaveLength(2); });
  expect(written()[1]?.expectedRevision).toBe(9n);
});

test("a change on the stream is noticed before anything is sent", async () => {
  const user = userEvent.setup();
  let now = guard({ maxAttempts: 3 }, 7n);
  const { send } = shown(AT, { now: () => now });
  await user.type(await screen.findByLabelText(/Owner/), "s");
  now = guard({ maxAttempts: 1 }, 21n);
  send(messageEvent({ revision: 21n }));
  expect(await screen.findByTestId("conflict")).toBeTruthy();
  expect(screen.getByRole("button", { name: "Review and save…" }).hasAttribute("disabled")).toBe(true);
});

test("what the server refuses stands at the field, in its words", async () => {
  const user = userEvent.setup();
  shown(AT, {
    put: () => {
      const fieldViolations = [{ field: "guard.ceiling.max_attempts", description: "must be between 1 and 10, not 99" }];
      throw new ConnectError("invalid", Code.InvalidArgument, undefined, [{ desc: BadRequestSchema, value: { fieldViolations } }]);
    },
  });
  const field = await screen.findByLabelText(/Max attempts/);
  await user.clear(field);
  await user.type(field, "99");
  expect(await screen.findByText(/must be between 1 and 10, not 99/)).toBeTruthy();
  expect(field.getAttribute("aria-invalid")).toBe("true");
});

test("an invalid number is reported without the server", async () => {
  const user = userEvent.setup();
  shown(AT);
  const field = await screen.findByLabelText(/Max attempts/);
  await user.clear(field);
  await user.type(field, "many");
  expect(await screen.findByText(/"many" is not a whole number from 1 to 10/)).toBeTruthy();
  await user.clear(field);
  await user.type(field, "2.5");
  expect(await screen.findByText(/"2.5" is not a whole number/)).toBeTruthy();
});

test("leaving with unsaved edits asks", async () => {
  const user = userEvent.setup();
  shown(AT);
  await user.type(await screen.findByLabelText(/Owner/), "s");
  await user.click(screen.getByRole("link", { name: "Guards" }));
  const dialog = within(screen.getByRole("dialog"));
  await user.click(dialog.getByRole("button", { name: "Cancel" }));
  expect(location.pathname).toBe("/guard");
  await user.click(screen.getByRole("link", { name: "Guards" }));
  await user.click(within(screen.getByRole("dialog")).getByRole("button", { name: "Leave" }));
  expect(location.pathname).toBe("/guards");
});

test("saving is disabled with a reason while the store is unavailable", async () => {
  const user = userEvent.setup();
  const { send } = shown(AT);
  await user.type(await screen.findByLabelText(/Owner/), "s");
  send(messageEvent({ revision: 20n, staleSince: { seconds: 1n } }));
  expect(await screen.findByText(/The store is not responding: only kill switches can be changed/)).toBeTruthy();
  expect(screen.getByRole("button", { name: "Review and save…" }).hasAttribute("disabled")).toBe(true);
});
