// Blocked retries: the share of failed calls without an allowed retry, and the main reason. Pure.
import { Fate } from "$wire/distribution_pb";
import type { RouteStats } from "$wire/fleet_pb";
import { Mode, RetryBreakerMode } from "$wire/policy_pb";
import type { Policy } from "$wire/policy_pb";
import { share } from "../../format/numbers";
import { isAboveMaxRatio } from "./gates";
import { meaning } from "./fate_meanings";

// Undefined = no retry was blocked in the window. The policy is limited by the guards; undefined = unknown.
export function blockedRetries(stats: RouteStats, policy: Policy | undefined): string | undefined {
  const observes = stats.mode === Mode.OBSERVE;
  const reasons = new Map<string, number>();
  let [failed, held] = [0, 0];
  for (const { fate, would, perS } of stats.fates) {
    if (meaning(fate).outcome !== "failed") continue;
    failed += perS;
    const reason = reasonOf(fate, stats, policy);
    if (reason === undefined || would !== observes) continue;
    held += perS;
    reasons.set(reason, (reasons.get(reason) ?? 0) + perS);
  }
  if (held === 0) return undefined;
  const [main] = [...reasons].sort(([, a], [, b]) => b - a)[0] ?? [];
  const words = observes ? "Retries that would be blocked" : "Blocked retries";
  return `${words}: ${share(held / failed)} of failed calls (${reasons.size > 1 ? "mainly " : ""}${main}).`;
}

// Undefined = the call was not retryable, or its attempts were exhausted.
function reasonOf(fate: Fate, stats: RouteStats, policy: Policy | undefined): string | undefined {
  switch (fate) {
    case Fate.RETRY_BREAKER:
      return reasonOfBreaker(stats, policy);
    case Fate.BUDGET:
      return "budget used up";
    // Under a kill of all calls, calls end as with an open circuit.
    case Fate.CIRCUIT_OPEN:
      return stats.killed > 0 && stats.circuitOpen === 0 ? "kill switch" : "circuit open";
    case Fate.KILLED:
      return "kill switch";
    case Fate.CHAIN_RETRY_FLAG:
    case Fate.CHAIN_NO_MORE_RETRY:
      return "already retried by another service";
    case Fate.DEADLINE:
      return "deadline";
    case Fate.STOP_WHEN:
      return "stop condition";
    default:
      return undefined;
  }
}

function reasonOfBreaker(stats: RouteStats, policy: Policy | undefined): string {
  const breaker = policy?.retryBreaker;
  if (breaker === undefined) return "retry breaker";
  if (isAboveMaxRatio(stats, breaker)) return "above the guard's ratio";
  return breaker.mode === RetryBreakerMode.RATIO ? "above the ratio" : "no credit";
}
