// The history against an in-memory server.
import { create } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { cleanup, screen, waitFor, within } from "@testing-library/svelte";
import userEvent from "@testing-library/user-event";
import { Severity } from "$wire/admin_pb";
import { Fleet } from "$wire/fleet_pb";
import { ChangeSchema, History, ObjectKind } from "$wire/history_pb";
import type { ChangeFilter, RollbackAllRequest, RollbackRequest } from "$wire/history_pb";
import { Mode } from "$wire/policy_pb";
import { RuleResult_Change as Outcome, RuleSchema } from "$wire/rules_pb";
import type { Rule } from "$wire/rules_pb";
import { afterEach, expect, test, vi } from "vitest";
import { messageEvent } from "../testing/messages";
import { shownAt } from "../testing/app";

vi.mock("uplot", () => ({ default: class { setData() {} setSize() {} destroy() {} } }));
afterEach(cleanup);

const KEY = { callerService: "orders", callerCluster: "*", calleeService: "stock", calleeMethod: "*" };
const key = { kind: { case: "rule" as const, value: KEY } };

function rule(maxAttempts: number, revision: bigint): Rule {
  return create(RuleSchema, { key: KEY, policy: { mode: Mode.ENFORCE, retry: { maxAttempts } }, revision });
}

function object(rule: Rule | undefined) {
  return rule === undefined ? {} : { kind: { case: "rule" as const, value: rule } };
}

// Revision 12: orders' rule went from 3 attempts to 5.
const CHANGE = create(ChangeSchema, {
  revision: 12n,
  at: { seconds: 1_800_000_000n },
  author: "ann",
  principal: "token ann (a1)",
  reason: "stock is flaky",
  peer: "10.0.0.7:4711",
  objects: [{ key, before: object(rule(3, 7n)), after: object(rule(5, 12n)) }],
  objectCount: 1,
});

interface Served {
  changes?: (filter: ChangeFilter | undefined) => object;
  rollback?: (request: RollbackRequest) => object;
  rollbackAll?: (request: RollbackAllRequest) => object;
  // As the rule is now.
  now?: () => Rule;
}

function shown(at: string, { changes, rollback, rollbackAll, now = () => rule(5, 12n) }: Served = {}, who?: object) {
  return shownAt(at, ({ service }) => {
    service(History, {
      listChanges: ({ filter }) => changes?.(filter) ?? { changes: [CHANGE], revision: 20n },
      getObject: ({ revision }) => object(revision === undefined ? now() : rule(3, 7n)),
      rollback: (request) => rollback?.(request) ?? {},
      rollbackAll: (request) => rollbackAll?.(request) ?? {},
      diffRevisions: ({ fromRevision = 0n, toRevision }) => ({
        objects: CHANGE.objects, fromRevision, toRevision: toRevision ?? 20n, total: 1n,
      }),
      async *exportAudit() { yield CHANGE; },
      async *export() { yield { revision: 20n, total: 2n, objects: [object(rule(5, 12n))] }; },
    });
    service(Fleet, { async *watchConvergence() { yield { done: true, affected: 2, acknowledged: 2 }; } });
  }, {}, who);
}

test("a change shows author, time with zone, source, reason and values", async () => {
  shown("/history");
  const row = (await screen.findByRole("link", { name: "12" })).closest("tr");
  expect(row?.textContent).toMatch(/2027.*(UTC|GMT|[A-Z]{3,4}|[+-]\d).*token ann \(a1\).*rule changed.*orders \* stock \*/s);
  expect(row?.textContent).toMatch(/retry\.max_attempts 3 → 5.*stock is flaky.*10\.0\.0\.7$/s);
});

test("the address holds the filter, and the server gets it", async () => {
  const asked: (ChangeFilter | undefined)[] = [];
  shown("/history?kind=guard&author=ann&q=stock&since=2026-11-22T00:00Z", {
    changes: (filter) => { asked.push(filter); return { changes: [], oldestRevision: 3n }; },
  });
  expect(await screen.findByText(/No change matches, back to revision 3/)).toBeTruthy();
  expect(asked[0]).toMatchObject({ kind: ObjectKind.GUARD, author: "ann", names: { text: "stock" }, since: { seconds: 1_795_305_600n } });
  const user = userEvent.setup();
  await user.selectOptions(screen.getByLabelText("Kind"), "rule");
  expect(new URLSearchParams(location.search).get("kind")).toBe("rule");
  await waitFor(() => { expect(asked.at(-1)?.kind).toBe(ObjectKind.RULE); });
});

test("a search that goes on is gone on with", async () => {
  const pages = [{ changes: [], nextPageToken: "a" }, { changes: [], nextPageToken: "b" }, { changes: [CHANGE] }];
  shown("/history", { changes: () => pages.shift() ?? {} });
  expect(await screen.findByRole("link", { name: "12" })).toBeTruthy();
});

test("a new revision on the stream brings the new change", async () => {
  let list = [CHANGE];
  const { send } = shown("/history", { changes: () => ({ changes: list }) });
  await screen.findByRole("link", { name: "12" });
  list = [create(ChangeSchema, { ...CHANGE, revision: 21n }), CHANGE];
  send(messageEvent({ revision: 21n }));
  expect(await screen.findByRole("link", { name: "21" })).toBeTruthy();
});

test("two ticked revisions can be compared, the older first", async () => {
  const user = userEvent.setup();
  shown("/history", { changes: () => ({ changes: [create(ChangeSchema, { ...CHANGE, revision: 19n }), CHANGE] }) });
  await user.click(await screen.findByLabelText("Compare revision 19"));
  await user.click(screen.getByLabelText("Compare revision 12"));
  await user.click(screen.getByRole("link", { name: "Compare 12 with 19" }));
  expect(location.search).toBe("?from=12&to=19");
  expect((await screen.findByTestId("difference")).textContent).toMatch(/Revision 12.*Revision 19.*max_attempts.*3.*5/s);
});

test("a rollback shows its effect first and is sent once", async () => {
  const user = userEvent.setup();
  const sent: RollbackRequest[] = [];
  shown("/history?rev=12", {
    rollback: (request) => {
      sent.push(request);
      const finding = { severity: Severity.WARNING, message: "the rule belongs to team-stock", code: "owned_by_another" };
      return { revision: 21n, updated: 1, results: [{ key: KEY, change: Outcome.UPDATED, findings: [finding], reach: { routes: 2, clients: 4 } }] };
    },
  }, {});
  await user.click(await screen.findByRole("button", { name: /Undo this change/ }));
  const dialog = within(screen.getByRole("dialog"));
  expect(await dialog.findByText(/the rule belongs to team-stock/)).toBeTruthy();
  expect(dialog.getByText(/2 known routes.*4 connected clients/)).toBeTruthy();
  expect(dialog.getByTestId("difference").textContent).toMatch(/max_attempts.*5.*3/s);
  await user.type(dialog.getByLabelText(/^Reason/), "wrong number");
  await user.type(dialog.getByLabelText(/^Your name/), "bob");
  await user.dblClick(dialog.getByRole("button", { name: "Roll back" }));
  expect(await screen.findByText(/rolled back to revision 11/)).toBeTruthy();
  expect(location.search).toBe("?rev=21");
  expect(sent.map(({ options }) => options?.validateOnly)).toEqual([true, false]);
  expect(sent[1]).toMatchObject({ toRevision: 11n, expectedRevision: 12n, options: { author: "bob", reason: "wrong number" } });
  expect(sent[1]?.options?.requestId).toMatch(/^[0-9a-f]{32}$/);
});

test("a rollback after a concurrent change writes nothing", async () => {
  const user = userEvent.setup();
  let now = rule(5, 12n);
  const expected: (bigint | undefined)[] = [];
  shown("/history?rev=12", {
    now: () => now,
    rollback: ({ options, expectedRevision }) => {
      expected.push(expectedRevision);
      if (options?.validateOnly) return { updated: 1, results: [{ key: KEY, change: Outcome.UPDATED }] };
      if (expectedRevision === 12n) {
        now = rule(8, 20n);
        throw new ConnectError("was changed: now at revision 20; read it again", Code.Aborted);
      }
      return { revision: 22n };
    },
  });
  await user.click(await screen.findByRole("button", { name: /Undo this change/ }));
  const dialog = within(screen.getByRole("dialog"));
  const button = dialog.getByRole("button", { name: "Roll back" });
  await waitFor(() => { expect(button.hasAttribute("disabled")).toBe(false); });
  await user.type(dialog.getByLabelText(/^Reason/), "wrong number");
  await user.click(button);
  expect(await dialog.findByText(/nothing was written/)).toBeTruthy();
  expect(dialog.getByTestId("difference").textContent).toMatch(/max_attempts.*8.*3/s);
  expect((dialog.getByLabelText(/^Reason/) as HTMLInputElement).value).toBe("wrong number");
  await user.click(dialog.getByRole("button", { name: "Roll back" }));
  await waitFor(() => { expect(location.search).toBe("?rev=22"); });
  expect(expected).toEqual([12n, 12n, 20n, 20n]);
});

test("everything is rolled back only with a reason, and only from the revision that was looked at", async () => {
  const user = userEvent.setup();
  const sent: RollbackAllRequest[] = [];
  shown("/history?rev=12", {
    rollbackAll: (request) => {
      sent.push(request);
      const results = [{ key: KEY, change: Outcome.UPDATED }, { key: KEY, guard: true, change: Outcome.DELETED }];
      return { revision: request.options?.validateOnly ? 20n : 21n, updated: 1, deleted: 1, results };
    },
  });
  await user.click(await screen.findByRole("button", { name: /all rules, guards and queue settings to before this change/ }));
  const dialog = within(screen.getByRole("dialog"));
  expect(await dialog.findByText(/1 updated, 0 restored, 1 deleted/)).toBeTruthy();
  const button = dialog.getByRole("button", { name: "Roll back" });
  await user.click(button);
  expect(sent).toHaveLength(1);
  await user.type(dialog.getByLabelText(/^Reason/), "the deploy was wrong");
  await user.click(button);
  await waitFor(() => { expect(sent).toHaveLength(2); });
  expect(sent[1]).toMatchObject({ toRevision: 11n, expectedRevision: 20n, options: { reason: "the deploy was wrong" } });
});

test("a rollback that the server rejects cannot be sent", async () => {
  const user = userEvent.setup();
  shown("/history?rev=12", {
    rollback: () => { throw new ConnectError("3 is more than 2, the ceiling of guard", Code.InvalidArgument); },
  });
  await user.click(await screen.findByRole("button", { name: /Undo this change/ }));
  const dialog = within(screen.getByRole("dialog"));
  expect((await dialog.findByRole("alert")).textContent).toContain("the ceiling of guard");
  expect(dialog.getByRole("button", { name: "Roll back" }).hasAttribute("disabled")).toBe(true);
});

test("a rollback is disabled with a reason while disconnected", async () => {
  const user = userEvent.setup();
  const { send } = shown("/history?rev=12", { rollback: () => ({ updated: 1, results: [{ key: KEY, change: Outcome.UPDATED }] }) });
  await user.click(await screen.findByRole("button", { name: /Undo this change/ }));
  send({ kind: "down", reason: "gone", waitMs: 1000 });
  const dialog = within(screen.getByRole("dialog"));
  expect(await dialog.findByText(/Disconnected: no changes are possible/)).toBeTruthy();
  expect(dialog.getByRole("button", { name: "Roll back" }).hasAttribute("disabled")).toBe(true);
});

test("a revision that is no longer kept is reported", async () => {
  shown("/history?rev=2", { changes: () => ({ oldestRevision: 5n, revision: 20n }) });
  expect(await screen.findByText("Changes are kept from revision 6 on.")).toBeTruthy();
});

// jsdom's files have no text().
function text(file: Blob | undefined): Promise<string> {
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.onload = () => { resolve(String(reader.result)); };
    reader.readAsText(file ?? new Blob());
  });
}

test("the audit log is saved as lines in the words of manifests; a part of an export is not saved", async () => {
  const user = userEvent.setup();
  const saved: Blob[] = [];
  vi.stubGlobal("URL", Object.assign(URL, {
    createObjectURL: (blob: Blob) => { saved.push(blob); return "blob:x"; },
    revokeObjectURL: () => {},
  }));
  const click = vi.spyOn(HTMLAnchorElement.prototype, "click").mockImplementation(() => {});
  shown("/history");
  await user.click(await screen.findByRole("button", { name: "Export the audit log" }));
  expect(await screen.findByText("damper-audit.jsonl: 1 saved.")).toBeTruthy();
  const line = JSON.parse(await text(saved[0])) as { revision: number; objects: object[] };
  expect(line.revision).toBe(12);
  expect(line.objects[0]).toMatchObject({ after: { rule: { policy: { mode: "enforce", retry: { max_attempts: 5 } } } } });
  await user.click(screen.getByRole("button", { name: /Export rules and guards/ }));
  expect(await screen.findByText(/The export is incomplete: 1 of 2 objects received/)).toBeTruthy();
  expect(click).toHaveBeenCalledTimes(1);
});
