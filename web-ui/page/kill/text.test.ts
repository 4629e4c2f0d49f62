import { expect, test } from "vitest";
import { kill } from "../testing/messages";
import { killed, undoKill } from "./text";

test.each([
  ["*", "*", {}, "retries everywhere are stopped", "damper unkill --all"],
  ["shop", "*", {}, "retries from shop are stopped", "damper unkill --caller 'shop'"],
  ["shop", "stock", { calls: true }, "all calls from shop to stock are rejected", "damper unkill --caller 'shop' --callee 'stock'"],
  ["*", "o'ne", {}, "retries to o'ne are stopped", "damper unkill --callee 'o'\\''ne'"],
])("a kill from %s to %s has its effect and its end as text", (callerService, calleeService, fields, words, command) => {
  const key = { callerService, callerCluster: "*", calleeService, calleeMethod: "*" };
  const set = kill(calleeService, { ...fields, key });
  expect([killed(set), undoKill(set)]).toEqual([words, command]);
});
