// What differs between versions, and in which words.
import { create } from "@bufbuild/protobuf";
import { GuardSchema } from "$wire/guards_pb";
import { KillSwitchSchema } from "$wire/kills_pb";
import { Code, Jitter, Mode } from "$wire/policy_pb";
import { RuleSchema } from "$wire/rules_pb";
import { expect, test } from "vitest";
import { differing, settings, unsetMeans } from "./settings";
import type { Settable } from "./settings";

function rule(policy: object, more: object = {}) {
  return create(RuleSchema, { key: { callerService: "a" }, policy, revision: 7n, updatedBy: "ann", ...more });
}

function differences(...versions: (Settable | undefined)[]) {
  return differing(versions).map(({ path, values }) => [path, ...values]);
}

test("settings are named and written as in a manifest", () => {
  const backoff = { kind: { case: "exponential" as const, value: { base: { nanos: 2_500_000 }, max: { seconds: 90n }, jitter: Jitter.PLUS_MINUS } } };
  const codes = { kind: { case: "allow" as const, value: { codes: [Code.UNAVAILABLE, Code.ABORTED] } } };
  const listed = settings(rule({ mode: Mode.ENFORCE, timeout: { seconds: 7200n }, retry: { maxAttempts: 4, codes, backoff }, budget: {} }, { owner: "team-a" }));
  expect(listed.map(({ path, value }) => [path, value])).toEqual([
    ["policy.mode", "enforce"],
    ["policy.timeout", "2h"],
    ["policy.retry.max_attempts", "4"],
    ["policy.retry.codes.allow", "[UNAVAILABLE, ABORTED]"],
    ["policy.retry.backoff.exponential.base", "2500us"],
    ["policy.retry.backoff.exponential.max", "90s"],
    ["policy.retry.backoff.exponential.jitter", "plus_minus"],
    ["policy.budget", "{}"],
    ["owner", "team-a"],
  ]);
});

test("only changed settings are listed, none set by the server", () => {
  const before = rule({ mode: Mode.OBSERVE, retry: { maxAttempts: 3 } });
  const after = rule({ mode: Mode.OBSERVE, retry: { maxAttempts: 5 }, holdUnary: true }, { revision: 9n, updatedBy: "bob" });
  expect(differences(before, after)).toEqual([
    ["policy.retry.max_attempts", "3", "5"],
    ["policy.hold_unary", undefined, "true"],
  ]);
  expect(differences(before, rule({ mode: Mode.OBSERVE, retry: { maxAttempts: 3 } }, { revision: 8n }))).toEqual([]);
});

test("a value that is not set shows its default", () => {
  const three = rule({ retry: { maxAttempts: 3 } });
  expect(differing([rule({ retry: {} }), three])[0]?.unset).toEqual(["default 3", ""]);
  expect(differing([rule({ mode: Mode.OFF }), three]).find(({ path }) => path.endsWith("attempts"))?.unset).toEqual(["", ""]);
});

test("an empty section is a difference only where it stands alone", () => {
  expect(differences(rule({ retry: {} }), rule({ retry: { maxAttempts: 3 } }))).toEqual([["policy.retry.max_attempts", undefined, "3"]]);
  expect(differences(rule({ mode: Mode.OFF }), rule({ mode: Mode.OFF, hedge: {} }))).toEqual([["policy.hedge", undefined, "{}"]]);
});

test("three versions list the settings in which any of them differs", () => {
  const guard = (maxAttempts: number, owner: string) => create(GuardSchema, { ceiling: { maxAttempts }, owner });
  expect(differences(guard(2, "x"), guard(3, "x"), guard(4, "y"))).toEqual([
    ["ceiling.max_attempts", "2", "3", "4"],
    ["owner", "x", "x", "y"],
  ]);
});

test("one that was created has all its settings", () => {
  const kill = create(KillSwitchSchema, { reason: "stock is down", calls: true, remaining: { seconds: 9n } });
  expect(differences(undefined, kill)).toEqual([
    ["calls", undefined, "true"],
    ["reason", undefined, "stock is down"],
  ]);
});

test("the meaning of an absent value is found in the words of the wire", () => {
  expect(unsetMeans("The first send included. 1 to 10, default 3.")).toBe("default 3");
  expect(unsetMeans("0.001 to 1 in steps of 0.0001, default 0.1.")).toBe("default 0.1");
  expect(unsetMeans("base to 24 h, default 250 ms, or base where base is longer.")).toBe("default 250 ms");
  expect(unsetMeans("1 ms to 1 h; absent = no limit.")).toBe("no limit");
  expect(unsetMeans("Default observe: count what would be refused.")).toBe("default observe");
  expect(unsetMeans("Contact of the owner.")).toBe("");
});
