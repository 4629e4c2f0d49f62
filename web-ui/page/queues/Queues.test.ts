// Queues against an in-memory server: depth and reasons, pausing, replaying dead jobs.
import { create } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { cleanup, screen, waitFor, within } from "@testing-library/svelte";
import userEvent from "@testing-library/user-event";
import { JobState } from "$wire/jobs_pb";
import { History } from "$wire/history_pb";
import { Mode } from "$wire/policy_pb";
import { JobChange, QueueSchema, Queues, QueueStatsSchema } from "$wire/queues_pb";
import type { ChangeJobsRequest, PutQueueRequest } from "$wire/queues_pb";
import { Role } from "$wire/tokens_pb";
import { afterEach, expect, test, vi } from "vitest";
import { shownAt } from "../testing/app";
import { rowsOf } from "./settings/form";

vi.mock("uplot", () => ({ default: class { setData() {} setSize() {} destroy() {} } }));
afterEach(cleanup);

const route = { callerService: "orders", callerCluster: "default", calleeService: "stock", calleeMethod: "shop.v1.Stock/Take" };
const queue = create(QueueSchema, { name: "stock-later", policy: { mode: Mode.ENFORCE }, workers: ["orders"], owner: "team-orders", revision: 9n, updatedBy: "ann" });
const seconds = (ms: number) => ({ seconds: BigInt(Math.floor(ms / 1000)), nanos: 0 });
const stats = create(QueueStatsSchema, {
  queue: "stock-later", waiting: 12_000n, leased: 1n, dead: 3n, workers: 2, credits: 31, oldestDueAt: seconds(Date.now() - 125_000),
  lanes: [{ route, waiting: 12_000n, leased: 1n, held: "callee_failing" }],
});
const dead = {
  jobId: "0190", queue: "stock-later", route, key: "order-7", state: JobState.DEAD, attempts: 25, deliveries: 25, ended: "attempts_exhausted",
  submittedAt: seconds(Date.now() - 90_000), at: seconds(Date.now() - 5_000),
  failures: [{ at: seconds(Date.now() - 5_000), code: 14, worker: "orders/a", detail: "connection refused", delivery: 25, took: { seconds: 0n, nanos: 12_000_000 } }],
};

interface Sent {
  readonly changes: ChangeJobsRequest[];
  readonly puts: PutQueueRequest[];
}

const orphaned = create(QueueStatsSchema, { queue: "gone", waiting: 2n, held: "no_policy", lanes: [{ route, waiting: 2n }] });

function shown(at: string, hasStore = true, who?: object, change: (request: ChangeJobsRequest) => object = () => ({ jobs: 3n }), nextPageToken = ""): Sent {
  const sent: Sent = { changes: [], puts: [] };
  shownAt(at, ({ service }) => {
    service(Queues, {
      listQueues: () => ({ queues: [queue] }),
      getQueue: ({ name }) => {
        if (name !== queue.name) throw new ConnectError("there is no queue", Code.NotFound);
        return queue;
      },
      getQueueStats: ({ queue }) => {
        if (!hasStore) throw new ConnectError("no job store", Code.Unavailable);
        return { queues: [stats, orphaned].filter((one) => queue === "" || one.queue === queue) };
      },
      listJobs: ({ filter }) => ({ jobs: filter?.states.includes(JobState.DEAD) ? [dead] : [], nextPageToken }),
      getJob: () => dead,
      changeJobs: (request) => {
        sent.changes.push(request);
        return change(request);
      },
      putQueue: (request) => {
        sent.puts.push(request);
        return {};
      },
    });
    service(History, { listChanges: () => ({}) });
  }, {}, who);
  return sent;
}

test("depth, lateness and the reason for waiting are in the list", async () => {
  shown("/queues");
  const row = within(await screen.findByRole("row", { name: /stock-later/ }));
  expect(row.getByText("12,000")).toBeTruthy();
  expect(row.getByText(/^2 min \d+ s$/)).toBeTruthy();
  expect(row.getByText(/the callee fails: one probe per second/)).toBeTruthy();
  expect(row.getByRole("link", { name: /3$/ }).getAttribute("href")).toBe("/queue?name=stock-later&state=dead");
});

test("without a job store the queues are listed without figures", async () => {
  shown("/queues", false);
  expect(await screen.findByText(/no job store/)).toBeTruthy();
  expect(screen.getByRole("link", { name: "stock-later" })).toBeTruthy();
});

test("pausing needs a reason and sends the whole queue", async () => {
  const user = userEvent.setup();
  const sent = shown("/queue?name=stock-later");
  await user.click(await screen.findByRole("button", { name: "Pause…" }));
  const dialog = within(screen.getByRole("dialog"));
  await user.type(dialog.getByLabelText(/^Reason/), "INC-7");
  await user.click(dialog.getByRole("button", { name: "Pause" }));
  await waitFor(() => { expect(sent.puts).toHaveLength(1); });
  expect(sent.puts[0]?.queue).toMatchObject({ name: "stock-later", paused: "INC-7", workers: ["orders"] });
  expect(sent.puts[0]?.expectedRevision).toBe(9n);
});

test("dead jobs are counted before they are replayed", async () => {
  const user = userEvent.setup();
  const sent = shown("/queue?name=stock-later&state=dead");
  await user.click(await screen.findByRole("button", { name: "Replay all…" }));
  const dialog = within(screen.getByRole("dialog"));
  await user.type(dialog.getByLabelText(/^Reason/), "stock is back");
  await user.click(await dialog.findByRole("button", { name: "Replay 3 jobs" }));
  await waitFor(() => { expect(sent.changes).toHaveLength(2); });
  expect(sent.changes[0]?.options?.validateOnly).toBe(true);
  expect(sent.changes[1]).toMatchObject({ change: JobChange.REPLAY, rate: 10, filter: { queue: "stock-later", states: [JobState.DEAD] } });
  expect(sent.changes[1]?.options).toMatchObject({ validateOnly: false, reason: "stock is back" });
});

test("the life of a job names worker, code and end", async () => {
  shown("/job?id=0190");
  expect((await screen.findByTestId("state")).textContent).toBe("dead");
  const life = screen.getByRole("region", { name: "Life" }).textContent;
  expect(life).toMatch(/Submitted.*Deliveries 1 to 24: released or lost.*Delivery 25 failed with UNAVAILABLE: connection refused.*orders\/a, took 12 ms.*Dead: attempts exhausted/s);
  expect(screen.getByRole("button", { name: "Replay…" })).toBeTruthy();
});

test("settings that are not set are shown with their defaults", () => {
  const rows = new Map(rowsOf(queue).map((row) => [row.path, row]));
  expect(rows.get("policy.retry.max_attempts")).toMatchObject({ value: "25", isDefault: true });
  expect(rows.get("rate")).toMatchObject({ value: "no limit", isDefault: true });
  expect(rows.get("workers")).toMatchObject({ value: "orders", isDefault: false });
  expect(rows.get("max_bytes")).toMatchObject({ value: "1 GiB", isDefault: true });
});

test("a viewer sees no button that the server would reject", async () => {
  const viewer = { principal: "token kim (1)", role: Role.VIEWER, tokensRequired: true };
  shown("/queue?name=stock-later&state=dead", true, viewer);
  expect(await screen.findByRole("table", { name: "Dead jobs by route and reason" })).toBeTruthy();
  expect(await screen.findByRole("link", { name: "Show all settings" })).toBeTruthy();
  expect(screen.queryByRole("button", { name: /Pause|Replay|Delete/ })).toBeNull();
  cleanup();
  shown("/job?id=0190", true, viewer);
  expect(await screen.findByTestId("state")).toBeTruthy();
  expect(screen.queryByRole("button", { name: /Replay|Delete/ })).toBeNull();
  cleanup();
  shown("/queues", true, viewer);
  expect(await screen.findByRole("link", { name: "stock-later" })).toBeTruthy();
  expect(screen.queryByRole("link", { name: "New queue" })).toBeNull();
});

test("a token with a scope changes neither queues nor jobs", async () => {
  shown("/queue?name=stock-later&state=dead", true, { principal: "token kim (1)", role: Role.OPERATOR, tokensRequired: true, scope: { callers: ["orders"] } });
  expect(await screen.findByRole("link", { name: "Show all settings" })).toBeTruthy();
  expect(screen.queryByRole("button", { name: /Pause|Replay/ })).toBeNull();
});

test("a group of dead jobs is replayed by its route and code", async () => {
  const user = userEvent.setup();
  const sent = shown("/queue?name=stock-later&state=dead");
  const table = within(await screen.findByRole("table", { name: "Dead jobs by route and reason" }));
  expect(table.getByText("attempts exhausted")).toBeTruthy();
  await user.click(table.getByRole("button", { name: /^Replay…/ }));
  const dialog = within(screen.getByRole("dialog"));
  await user.type(dialog.getByLabelText(/^Reason/), "stock is back");
  await user.click(await dialog.findByRole("button", { name: "Replay 3 jobs" }));
  expect((await screen.findByTestId("changed")).textContent).toContain("3 jobs were set to wait again.");
  expect(sent.changes.at(-1)?.filter).toMatchObject({ queue: "stock-later", states: [JobState.DEAD], route, code: 14 });
});

test("groups of a part of the dead jobs show of how many", async () => {
  shown("/queue?name=stock-later&state=dead");
  await screen.findByRole("table", { name: "Dead jobs by route and reason" });
  expect(screen.queryByTestId("part")).toBeNull();
  cleanup();
  shown("/queue?name=stock-later&state=dead", true, undefined, undefined, "more");
  await waitFor(() => { expect(screen.getByTestId("part").textContent).toContain("Groups of the oldest 1 of 3 dead jobs."); });
});

test("a change that takes several requests is repeated for the rest", async () => {
  const user = userEvent.setup();
  const sent = shown("/job?id=0190", true, undefined, (request) => ({ jobs: 3n, more: !request.options?.validateOnly && request.done === 0n }));
  await user.click(await screen.findByRole("button", { name: "Replay…" }));
  const dialog = within(screen.getByRole("dialog"));
  await user.type(dialog.getByLabelText(/^Reason/), "stock is back");
  await user.click(await dialog.findByRole("button", { name: "Replay 3 jobs" }));
  expect((await screen.findByTestId("changed")).textContent).toContain("6 jobs");
  expect(sent.changes.map(({ done }) => done)).toEqual([0n, 0n, 3n]);
});

test("jobs of a deleted queue are shown, and why they wait", async () => {
  shown("/queue?name=gone");
  expect((await screen.findByTestId("verdict")).textContent).toContain("the queue has no policy");
  expect(screen.getByRole("link", { name: "Create it again" })).toBeTruthy();
  expect(screen.queryByRole("button", { name: "Pause…" })).toBeNull();
});
