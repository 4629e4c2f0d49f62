import { expect, test } from "vitest";
import { without } from "./draft";
import { changes, merged, threeWay } from "./changes";

const base = { mode: "MODE_OBSERVE", retry: "on", "retry.max_attempts": "3", timeout: "1s" };

test("only differences are listed, in the order of the form", () => {
  const after = { ...base, mode: "MODE_ENFORCE", "retry.max_attempts": "2" };
  expect(changes(base, after)).toEqual([
    { path: "mode", label: "Mode", before: "observe", after: "enforce" },
    { path: "retry.max_attempts", label: "Retries: Max attempts", before: "3", after: "2" },
  ]);
  expect(changes(base, { ...base, timeout: " 1s " })).toEqual([]);
});

test("a section that is switched off takes its settings with it", () => {
  expect(changes(base, without(base, "retry")).map(({ path }) => path)).toEqual(["retry", "retry.max_attempts"]);
});

test("settings of a variant that is not chosen do not count", () => {
  const other = { ...base, "retry.backoff.fixed.delay": "1s" };
  expect(changes(base, other)).toEqual([]);
  expect(changes(base, { ...other, "retry.backoff": "fixed" }).map(({ path }) => path)).toEqual(["retry.backoff", "retry.backoff.fixed.delay"]);
});

test("what both changed differently is contested, what one changed is not", () => {
  const theirs = { ...base, "retry.max_attempts": "5", timeout: "2s" };
  const mine = { ...base, "retry.max_attempts": "2", mode: "MODE_ENFORCE" };
  const found = threeWay(base, theirs, mine).map(({ path, contested }) => [path, contested]);
  expect(found).toEqual([["mode", false], ["timeout", false], ["retry.max_attempts", true]]);
});

test("my changes go on top of theirs, and what I removed stays away", () => {
  const mine = without({ ...base, "retry.max_attempts": "2" }, "timeout");
  const theirs = { ...base, mode: "MODE_OFF", timeout: "9s" };
  expect(merged(base, theirs, mine)).toEqual({ mode: "MODE_OFF", retry: "on", "retry.max_attempts": "2" });
});
