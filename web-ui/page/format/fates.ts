// Fates of calls as text.
import { Fate } from "$wire/distribution_pb";
import type { FateRate } from "$wire/fleet_pb";

// Fates whose wire name is not readable.
const FATES: Partial<Record<Fate, string>> = {
  [Fate.OK_AFTER_RETRY]: "ok after a retry",
  [Fate.OK_BY_HEDGE]: "ok by a hedge",
  [Fate.RETRY_BREAKER]: "blocked by the retry breaker",
  [Fate.BUDGET]: "budget used up",
  [Fate.CHAIN_RETRY_FLAG]: "already a retry",
  [Fate.CHAIN_NO_MORE_RETRY]: "given up downstream",
  [Fate.NOT_REPLAYABLE]: "request not replayable",
  [Fate.COMMITTED]: "response had begun",
  [Fate.POLICY_OFF]: "not retried by rule",
  [Fate.STOP_WHEN]: "stop condition",
  [Fate.KILLED]: "failed under a kill switch",
  [Fate.RETRY]: "retry",
  [Fate.MAX_DURATION]: "max duration reached",
};

export function fateName(fate: Fate): string {
  return FATES[fate] ?? (Fate[fate] ?? `fate ${fate}`).toLowerCase().replaceAll("_", " ");
}

// The most frequent first. Would-be fates of observed calls are separate entries.
export function topFates(fates: readonly FateRate[], most: number): FateRate[] {
  return fates.filter((fate) => fate.perS > 0).sort((a, b) => b.perS - a.perS).slice(0, most);
}
