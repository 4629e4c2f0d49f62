// What each fate means, as docs/policy.md has it, and what it says of the call.
import { Fate } from "$wire/distribution_pb";

export type Outcome = "ok" | "saved" | "failed" | "neither";

interface Meaning {
  readonly outcome: Outcome;
  readonly words: string;
  // The layers above are told not to repeat it.
  readonly stopsAbove?: true;
}

const MEANINGS: Record<Fate, Meaning> = {
  [Fate.UNSPECIFIED]: { outcome: "failed", words: "Not said." },
  [Fate.OK]: { outcome: "ok", words: "The first attempt was answered." },
  [Fate.OK_AFTER_RETRY]: { outcome: "saved", words: "A retry was answered: without it the call had failed." },
  [Fate.OK_BY_HEDGE]: { outcome: "saved", words: "A hedge was answered before the first attempt." },
  [Fate.NOT_RETRYABLE]: { outcome: "failed", words: "It failed with a code that the rule does not repeat." },
  [Fate.ATTEMPTS_EXHAUSTED]: { outcome: "failed", words: "Every attempt that the rule allows was made, and failed.", stopsAbove: true },
  [Fate.RETRY_BREAKER]: { outcome: "failed", words: "It failed, and no credit was left for a retry, or too much was failing for the ratio.", stopsAbove: true },
  [Fate.DEADLINE]: { outcome: "failed", words: "Its time was over, or too little was left for a retry to finish.", stopsAbove: true },
  [Fate.MAX_DURATION]: { outcome: "failed", words: "retry.max_duration was over, or would have been after the wait.", stopsAbove: true },
  [Fate.PUSHBACK]: { outcome: "failed", words: "The server asked not to repeat it.", stopsAbove: true },
  [Fate.CHAIN_RETRY_FLAG]: { outcome: "failed", words: "The request served is itself a repeat: the layer above is the one that repeats." },
  [Fate.CHAIN_NO_MORE_RETRY]: { outcome: "failed", words: "A service further down has repeated it already and given up.", stopsAbove: true },
  [Fate.NOT_REPLAYABLE]: { outcome: "failed", words: "The request was too long to be kept, or not complete when it was sent." },
  [Fate.COMMITTED]: { outcome: "failed", words: "It failed after the answer had begun: that can not be taken back." },
  [Fate.POLICY_OFF]: { outcome: "failed", words: "It failed where no rule repeats: there is none, or it sends calls once." },
  [Fate.CANCELLED]: { outcome: "neither", words: "The application gave the call up." },
  [Fate.RETRY]: { outcome: "failed", words: "It failed, and a retry would have been sent." },
  [Fate.BUDGET]: { outcome: "failed", words: "It failed, and the budget of repeats was used up.", stopsAbove: true },
  [Fate.STOP_WHEN]: { outcome: "failed", words: "It failed, and was too slow, or too few succeed, to repeat it.", stopsAbove: true },
  [Fate.CIRCUIT_OPEN]: { outcome: "failed", words: "Nothing was sent: the circuit is open, or a kill refuses calls.", stopsAbove: true },
  [Fate.KILLED]: { outcome: "failed", words: "It failed, and a kill switch stops repeats.", stopsAbove: true },
};

export function meaning(fate: Fate): Meaning {
  // A newer server may know more.
  return (MEANINGS as Partial<Record<number, Meaning>>)[fate] ?? MEANINGS[Fate.UNSPECIFIED];
}

export const OUTCOME_SIGN: Record<Outcome, string> = { ok: "●", saved: "◐", failed: "◆", neither: "○" };
