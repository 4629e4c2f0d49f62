// Messages in the words of manifests.
import { create } from "@bufbuild/protobuf";
import { reflect } from "@bufbuild/protobuf/reflect";
import { Code, Mode } from "$wire/policy_pb";
import { RuleSchema } from "$wire/rules_pb";
import { expect, test } from "vitest";
import { exact, plain, yaml } from "./manifest";

test("a rule is written as the command line writes it", () => {
  const rule = create(RuleSchema, {
    key: { callerService: "*", callerCluster: "1.0", calleeService: "null", calleeMethod: "a.B/*" },
    policy: {
      mode: Mode.OFF,
      retry: {
        maxAttempts: 3,
        codes: { kind: { case: "deny", value: { codes: [Code.ABORTED, Code.INTERNAL] } } },
        backoff: { kind: { case: "custom", value: { delays: [{ nanos: 10_000_000 }, { seconds: 3600n }] } } },
      },
      chain: {},
    },
    owner: "yes: 'we' #1",
  });
  expect(yaml(plain(reflect(RuleSchema, rule)))).toBe(`key:
  caller_service: "*"
  caller_cluster: "1.0"
  callee_service: "null"
  callee_method: a.B/*
policy:
  mode: "off"
  retry:
    max_attempts: 3
    codes:
      deny:
      - ABORTED
      - INTERNAL
    backoff:
      custom:
        delays:
        - 10ms
        - 1h
  chain: {}
owner: "yes: 'we' #1"
`);
});

test("durations lose nothing", () => {
  const durations = [{ seconds: 0n, nanos: 0 }, { seconds: 90n, nanos: 0 }, { seconds: 1n, nanos: 1000 }, { seconds: -2n, nanos: 0 }, { seconds: 86_400n, nanos: 0 }];
  expect(durations.map((one) => exact({ $typeName: "google.protobuf.Duration", ...one }))).toEqual(["0ms", "90s", "1000001us", "-2s", "24h"]);
});
