// Messages for tests.
import { create } from "@bufbuild/protobuf";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { Fate } from "$wire/distribution_pb";
import { RouteStatsSchema, RuleViewSchema, WatchResponseSchema } from "$wire/fleet_pb";
import type { RouteStats, RuleView, WatchResponse } from "$wire/fleet_pb";
import { KillSwitchSchema } from "$wire/kills_pb";
import type { KillSwitch } from "$wire/kills_pb";
import { Jitter, Mode } from "$wire/policy_pb";
import type { Event } from "../feed/link";
import { compact } from "../feed/compact";

export function message(fields: object): WatchResponse {
  return create(WatchResponseSchema, fields as MessageInitShape<typeof WatchResponseSchema>);
}

// A message as pages receive it.
export function messageEvent(fields: object): Event {
  return { kind: "message", message: compact(message(fields)) };
}

export function route(caller: string, fields: object = {}): RouteStats {
  return create(RouteStatsSchema, {
    key: { callerService: caller, callerCluster: "default", calleeService: "stock", calleeMethod: "shop.Stock/Take" },
    callsPerS: 10,
    attemptsPerS: 10,
    amplification: 1,
    fates: [{ fate: Fate.OK, perS: 10 }],
    ...fields,
  });
}

export function rule(caller: string, revision: bigint, fields: object = {}): RuleView {
  return create(RuleViewSchema, {
    rule: {
      key: { callerService: caller, callerCluster: "*", calleeService: "stock", calleeMethod: "*" },
      policy: {
        mode: Mode.ENFORCE,
        retry: {
          maxAttempts: 3,
          backoff: {
            kind: {
              case: "exponential",
              value: { base: { nanos: 25_000_000 }, multiplier: 2, max: { nanos: 250_000_000 }, jitter: Jitter.FULL },
            },
          },
        },
        retryBreaker: {},
      },
      revision,
    },
    clients: 4,
    applied: 4,
    ...fields,
  });
}

export function kill(callee: string, fields: object = {}): KillSwitch {
  return create(KillSwitchSchema, {
    key: { callerService: "*", callerCluster: "*", calleeService: callee, calleeMethod: "*" },
    reason: "stock is down",
    updatedBy: "ann",
    remaining: { seconds: 1500n },
    ...fields,
  });
}

// jsdom has no modal dialogs.
export function withDialogs(): void {
  HTMLDialogElement.prototype.showModal = function show() { this.open = true; };
  HTMLDialogElement.prototype.close = function close() { this.open = false; };
}
