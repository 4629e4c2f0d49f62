// What is handed on of a message: of each rule no more than a row shows.
//
// From the worker to a tab everything is copied, on the tab's main thread. A rule as it comes is some thirty objects
// within each other, and ten thousand of them keep that thread a long while; as rows they take a twentieth of the time.
// Who needs all of a rule asks the server for it.
import type { RuleView, WatchResponse } from "$wire/fleet_pb";
import { Mode } from "$wire/policy_pb";
import type { Names } from "../format/key";
import { attempts, backoff, breaker } from "../format/policy";

export interface RuleRow extends Names {
  readonly mode: Mode;
  // 0 = the rule does not say.
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
