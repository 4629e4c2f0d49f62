// Jobs that a kill switch would hold.
import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { QueueStatsSchema } from "$wire/queues_pb";
import { heldJobs, heldJobsText } from "./held_jobs";

const lane = (calleeService: string, waiting: bigint) => ({ route: { callerService: "orders", callerCluster: "default", calleeService, calleeMethod: "shop.v1.A/B" }, waiting });
const stats = [create(QueueStatsSchema, { queue: "a", lanes: [lane("stock", 1_200n), lane("ledger", 5n)] }), create(QueueStatsSchema, { queue: "b", lanes: [lane("stock", 1n)] }),
  create(QueueStatsSchema, { queue: "c", lanes: [lane("mailer", 7n)] })];
const of = (calleeService: string) => ({ callerService: "*", callerCluster: "*", calleeService, calleeMethod: "*" });

test("jobs of matching routes count once, over all queues", () => {
  expect(heldJobs([of("stock"), of("*")], stats)).toEqual({ jobs: 1_213n, queues: 3 });
  expect(heldJobsText(heldJobs([of("stock")], stats), true)).toBe("It also holds 1,201 waiting jobs of 2 queues until it ends.");
  expect(heldJobsText(heldJobs([of("ledger")], stats), false)).toBe("It also holds those of 5 waiting jobs of 1 queue that were sent before, until it ends.");
  expect(heldJobsText(heldJobs([of("nothing")], stats), false)).toBe("");
});
