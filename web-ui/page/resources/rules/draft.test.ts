import { create, fromJson, toJson } from "@bufbuild/protobuf";
import type { JsonObject } from "@bufbuild/protobuf";
import { PolicySchema } from "$wire/policy_pb";
import { expect, test } from "vitest";
import { draftOf, OTHER, policyOf, time } from "./draft";
import type { Draft } from "./draft";
import { allFields, SECTIONS, shownFields, meaningOfEmpty } from "./form";

const everything: JsonObject = {
  mode: "MODE_OBSERVE",
  timeout: "2s",
  replay_limit_bytes: 1024,
  hold_unary: true,
  call_id: true,
  retry: {
    max_attempts: 4,
    max_duration: "1.500s",
    per_attempt_timeout: "0.250s",
    codes: { deny: { codes: ["CODE_INTERNAL", "CODE_ABORTED"] } },
    backoff: { exponential: { base: "0.025s", multiplier: 1.5, max: "0.250s", jitter: "JITTER_PLUS_MINUS", jitter_share: 0.2, over_max: "OVER_MAX_STOP" } },
  },
  retry_breaker: { enabled: true, ratio: 0.25, buckets: 5, bucket_length: "0.500s", min_failures: 0, min_samples: 10,
    failure_codes: { codes: ["CODE_UNAVAILABLE"] }, mode: "RETRY_BREAKER_MODE_RATIO", earn: 0.05, max_ratio: 0.2 },
  budget: { ratio: 0.1, min_per_second: 0 },
  hedge: { delay: { percentile: { at: 99.9, min: "0.001s", max: "1s" } }, max_hedges: 2 },
  stop_when: { latency_above_percentile: 95, success_rate_below: 50, min_samples: 20 },
  circuit_breaker: { consecutive_failures: 3, failure_ratio: 0.5, min_calls: 10, open_for: "5s", probes: 1, slow_call: "1s" },
  chain: { ignore_retry_flag: true, ignore_no_more_retry: true, propagate_baggage: true },
};

const same = (policy: JsonObject) => {
  const base = fromJson(PolicySchema, policy);
  const { policy: again, faults } = policyOf(draftOf(base), base);
  expect([...faults]).toEqual([]);
  if (again === undefined) throw new Error("no policy");
  expect(toJson(PolicySchema, again)).toEqual(toJson(PolicySchema, base));
};

test("what is not touched stays as it was, every setting of it", () => { same(everything); });

test("a choice that this page has no name for stays as it was", () => { same({ retry_breaker: { mode: 2 } }); });

test("the retry breaker's fields are shown where they have an effect, or are set", () => {
  const section = SECTIONS.find(({ path }) => path === "retry_breaker");
  const paths = (draft: Draft, before: Draft = draft) =>
    section && shownFields(section, draft, before).map(({ path }) => path.replace("retry_breaker.", "")).filter((name) => /earn|ratio|min_/.test(name));
  const ratio = { "retry_breaker.mode": "RETRY_BREAKER_MODE_RATIO" };
  expect(paths({})).toEqual(["earn", "max_ratio"]);
  expect(paths({ "retry_breaker.mode": "RETRY_BREAKER_MODE_CREDIT" })).toEqual(["earn", "max_ratio"]);
  expect(paths(ratio)).toEqual(["ratio", "min_failures", "min_samples", "max_ratio"]);
  expect(paths({ hedge: "on" })).toEqual(["earn", "ratio", "min_failures", "min_samples", "max_ratio"]);
  expect(paths({ "retry_breaker.min_failures": "3" })).toEqual(["earn", "min_failures", "max_ratio"]);
  expect(paths({}, { "retry_breaker.min_failures": "3" }), "removed, so that it can be undone").toContain("min_failures");
  expect(paths({ ...ratio, "retry_breaker.earn": "0.05" })).toContain("earn");
});

test.each([
  [{ none: {} }],
  [{ fixed: { delay: "0.100s" } }],
  [{ random: { min: "0s", max: "0.000007s" } }],
  [{ incrementing: { initial: "1s", step: "-0.100s", max: "2s" } }],
  [{ fibonacci: { unit: "60s" } }],
  [{ custom: { delays: ["0.050s", "3600s"] } }],
  [{ sum: { parts: [{ fixed: { delay: "1s" } }, { none: {} }] } }],
  [{ by_code: { codes: [{ codes: ["CODE_ABORTED"], backoff: { none: {} } }] } }],
])("the backoff %j stays as it was", (backoff) => { same({ mode: "MODE_OFF", retry: { backoff } as JsonObject }); });

test("a backoff that the form does not know is kept", () => {
  const base = fromJson(PolicySchema, { retry: { backoff: { sum: { parts: [{ none: {} }] } } } });
  expect(draftOf(base)["retry.backoff"]).toBe(OTHER);
});

test("an empty section is there, an absent one is not", () => {
  const base = fromJson(PolicySchema, { mode: "MODE_OBSERVE", budget: {} });
  const draft = draftOf(base);
  expect(draft["budget"]).toBeDefined();
  expect(draft["hedge"]).toBeUndefined();
  expect(policyOf(draft, base).policy?.budget).toBeDefined();
  expect(policyOf({ mode: "MODE_OBSERVE" }, base).policy?.budget).toBeUndefined();
});

test("all invalid values are reported by path at once", () => {
  const draft = { retry: "on", "retry.max_attempts": "three", timeout: "soon", "retry.per_attempt_timeout": "10" };
  const { policy, faults } = policyOf(draft, create(PolicySchema));
  expect(policy).toBeUndefined();
  expect([...faults.keys()]).toEqual(["timeout", "retry.max_attempts", "retry.per_attempt_timeout"]);
  expect(faults.get("timeout")).toBe('"soon" is not a time such as 250ms, 1.5s or 2min.');
});

test.each([
  ["250ms", "0.25s"], ["1.5s", "1.5s"], ["2 min", "120s"], ["1h", "3600s"], ["1min 30s", "90s"], ["7us", "0.000007s"],
  ["-100ms", "-0.1s"], ["0s", "0s"], ["0.0000001s", undefined], ["5", undefined], ["", undefined], ["5 parsecs", undefined], ["ms", undefined],
])("the time %j is %j", (text, seconds) => { expect(time(text)).toBe(seconds); });

test("every field has a help text and a placeholder", () => {
  for (const section of SECTIONS) {
    for (const field of allFields(section)) expect(field.help, field.path).not.toBe("");
  }
  const emptyMeaning = (wanted: string) => SECTIONS.flatMap(allFields).filter(({ path }) => path === wanted).map(meaningOfEmpty);
  expect(emptyMeaning("retry.max_attempts")).toEqual(["default 3"]);
  expect(emptyMeaning("retry_breaker.earn")).toEqual(["default 0.02"]);
  expect(emptyMeaning("timeout")).toEqual(["no limit"]);
});
