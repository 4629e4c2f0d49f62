// A message reduced to the values that the pages show: one row per rule.
//
// A message is copied from the worker to each tab on the main thread of the tab. A rule has about thirty
// nested objects, so copying ten thousand rules blocks that thread; rows take a twentieth of the time. The
// rule editor requests the whole rule.
import type { RuleView, WatchResponse } from "$wire/fleet_pb";
import { Mode } from "$wire/policy_pb";
import type { Names } from "../format/key";
import { attempts, backoff, breaker } from "../format/policy";

export interface RuleRow extends Names {
  readonly mode: Mode;
  // 0 = not set.
  readonly maxAttempts: number;
  // As text.
  readonly attempts: string;
  readonly backoff: string;
  readonly breaker: string;
  readonly revision: bigint;
  // As in RuleView.
  readonly clients: number;
  readonly applied: number;
  readonly refused: number;
  readonly lackingFeatures: number;
}

export type CompactMessage = Omit<WatchResponse, "rules"> & { readonly rules: readonly RuleRow[] };

export function compact(message: WatchResponse): CompactMessage {
  return { ...message, rules: message.rules.map(rowOf) };
}

function rowOf({ rule, clients, applied, refused, lackingFeatures }: RuleView): RuleRow {
  const policy = rule?.policy;
  return {
    callerService: rule?.key?.callerService ?? "",
    callerCluster: rule?.key?.callerCluster ?? "",
    calleeService: rule?.key?.calleeService ?? "",
    calleeMethod: rule?.key?.calleeMethod ?? "",
    mode: policy?.mode ?? Mode.UNSPECIFIED,
    maxAttempts: policy?.retry?.maxAttempts ?? 0,
    attempts: attempts(policy),
    backoff: backoff(policy),
    breaker: breaker(policy),
    revision: rule?.revision ?? 0n,
    clients,
    applied,
    refused,
    lackingFeatures,
  };
}
