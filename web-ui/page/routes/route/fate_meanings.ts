// The meaning of each fate, as in docs/policy.md, and the outcome of the call.
import { Fate } from "$wire/distribution_pb";

export type Outcome = "ok" | "saved" | "failed" | "neither";

interface Meaning {
  readonly outcome: Outcome;
  readonly words: string;
  // The services that called the caller do not retry the failure.
  readonly stopsAbove?: true;
}

const MEANINGS: Record<Fate, Meaning> = {
  [Fate.UNSPECIFIED]: { outcome: "failed", words: "Unknown." },
  [Fate.OK]: { outcome: "ok", words: "The first attempt succeeded." },
  [Fate.OK_AFTER_RETRY]: { outcome: "saved", words: "A retry succeeded; without it the call would have failed." },
  [Fate.OK_BY_HEDGE]: { outcome: "saved", words: "A hedge succeeded before the first attempt." },
  [Fate.NOT_RETRYABLE]: { outcome: "failed", words: "Failed with a code that the rule does not retry." },
  [Fate.ATTEMPTS_EXHAUSTED]: { outcome: "failed", words: "All attempts that the rule allows failed.", stopsAbove: true },
  [Fate.RETRY_BREAKER]: { outcome: "failed", words: "Failed; no credit was left for a retry, or too much was failing for the ratio.", stopsAbove: true },
  [Fate.DEADLINE]: { outcome: "failed", words: "The deadline had passed, or too little time was left for a retry.", stopsAbove: true },
  [Fate.MAX_DURATION]: { outcome: "failed", words: "retry.max_duration had passed, or would have passed during the wait.", stopsAbove: true },
  [Fate.PUSHBACK]: { outcome: "failed", words: "The server asked not to retry it.", stopsAbove: true },
  [Fate.CHAIN_RETRY_FLAG]: { outcome: "failed", words: "The incoming request was a retry, so the upstream caller retries, not this hop." },
  [Fate.CHAIN_NO_MORE_RETRY]: { outcome: "failed", words: "A downstream service had already retried it and given up.", stopsAbove: true },
  [Fate.NOT_REPLAYABLE]: { outcome: "failed", words: "The request was too large to keep for a retry, or still being sent." },
  [Fate.COMMITTED]: { outcome: "failed", words: "Failed after the response had begun, so it could not be retried." },
  [Fate.POLICY_OFF]: { outcome: "failed", words: "Failed without retries: no rule applies, or its rule allows one attempt." },
  [Fate.CANCELLED]: { outcome: "neither", words: "Cancelled by the application." },
  [Fate.RETRY]: { outcome: "failed", words: "Failed; a retry would have been sent." },
  [Fate.BUDGET]: { outcome: "failed", words: "Failed; the retry budget was used up.", stopsAbove: true },
  [Fate.STOP_WHEN]: { outcome: "failed", words: "Failed; stop_when blocked a retry: the call was too slow, or the success rate too low.", stopsAbove: true },
  [Fate.CIRCUIT_OPEN]: { outcome: "failed", words: "Not sent: the circuit is open.", stopsAbove: true },
  [Fate.KILLED]: { outcome: "failed", words: "Rejected, or failed and not retried, because of a kill switch.", stopsAbove: true },
};

export function meaning(fate: Fate): Meaning {
  // A newer server may know more.
  return (MEANINGS as Partial<Record<number, Meaning>>)[fate] ?? MEANINGS[Fate.UNSPECIFIED];
}

export const OUTCOME_SIGN: Record<Outcome, string> = { ok: "●", saved: "◐", failed: "◆", neither: "○" };
