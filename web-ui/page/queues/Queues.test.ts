// Queues against an in-memory server: depth and reasons, pausing, replaying dead jobs.
import { create } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { cleanup, screen, waitFor, within } from "@testing-library/svelte";
import userEvent from "@testing-library/user-event";
import { JobState } from "$wire/jobs_pb";
import { Mode } from "$wire/policy_pb";
import { JobChange, QueueSchema, Queues, QueueStatsSchema } from "$wire/queues_pb";
import type { ChangeJobsRequest, PutQueueRequest } from "$wire/queues_pb";
import { afterEach, expect, test, vi } from "vitest";
import { shownAt } from "../testing/app";
import { settings } from "./text";

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

function shown(at: string, hasStore = true): Sent {
  const sent: Sent = { changes: [], puts: [] };
  shownAt(at, ({ service }) => {
    service(Queues, {
      listQueues: () => ({ queues: [queue] }),
      getQueue: () => queue,
      getQueueStats: () => {
        if (!hasStore) throw new ConnectError("no job store", Code.Unavailable);
        return { queues: [stats] };
      },
      listJobs: ({ filter }) => ({ jobs: filter?.states.includes(JobState.DEAD) ? [dead] : [] }),
      getJob: () => dead,
      changeJobs: (request) => {
        sent.changes.push(request);
        return { jobs: 3n };
      },
      putQueue: (request) => {
        sent.puts.push(request);
        return {};
      },
    });
  });
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
  expect(await screen.findByText(/Jobs are disabled on this server/)).toBeTruthy();
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
  expect((await screen.findByTestId("state")).textContent).toBe("dead: attempts exhausted");
  const life = within(screen.getByRole("table"));
  expect(life.getByText("orders/a")).toBeTruthy();
  expect(life.getByText(/connection refused/)).toBeTruthy();
  expect(screen.getByRole("button", { name: "Replay…" })).toBeTruthy();
});

test("settings that are not set are shown as default", () => {
  const rows = new Map(settings(queue));
  expect(rows.get("Attempts")).toBe("default");
  expect(rows.get("Rate")).toBe("no limit");
  expect(rows.get("Workers")).toBe("orders");
});
