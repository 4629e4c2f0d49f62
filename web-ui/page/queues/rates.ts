// Rates of a queue from its counters, which count from the start of the server. Pure.
import type { QueueStats } from "$wire/queues_pb";

export interface Rates {
  // Jobs per second; undefined = not known yet.
  readonly inPerS: number | undefined;
  readonly donePerS: number | undefined;
  readonly failedPerS: number | undefined;
}

export const UNKNOWN: Rates = { inPerS: undefined, donePerS: undefined, failedPerS: undefined };

// Rates are averages over this time, or over as much of it as was observed.
const OVER_MS = 10_000;

type Counters = Pick<QueueStats, "submitted" | "done" | "failed">;

// The counters of one queue over time.
export class Counted {
  #seen: readonly { readonly atMs: number; readonly counters: Counters }[] = [];

  add({ submitted, done, failed }: Counters, atMs: number): Rates {
    const last = this.#seen.at(-1);
    // Lower counters are those of a server that was started again, or of another one.
    const isContinued = last !== undefined && atMs > last.atMs && submitted >= last.counters.submitted && done >= last.counters.done && failed >= last.counters.failed;
    // The tab may have slept: then the last one is older.
    const recent = isContinued ? this.#seen.filter((one) => one === last || one.atMs >= atMs - OVER_MS) : [];
    const first = recent[0];
    this.#seen = [...recent, { atMs, counters: { submitted, done, failed } }];
    if (first === undefined) return UNKNOWN;
    const s = (atMs - first.atMs) / 1000;
    const perS = (now: bigint, before: bigint) => Number(now - before) / s;
    return {
      inPerS: perS(submitted, first.counters.submitted),
      donePerS: perS(done, first.counters.done),
      failedPerS: perS(failed, first.counters.failed),
    };
  }
}
