// The figures of a queue over the last minutes, as this tab has seen them, for its charts.
//
// The server keeps no earlier figures of queues, so the charts begin with the page.
import type { QueueStats } from "$wire/queues_pb";
import { PAST_S } from "../feed/past";
import { Counted, UNKNOWN } from "./rates";
import type { Rates } from "./rates";
import { lateMs } from "./text";

export interface Sample extends Rates {
  // Seconds since the epoch, by this machine's clock.
  readonly at: number;
  readonly waiting: number;
  readonly lateS: number;
}

export class QueueHistory {
  samples = $state.raw<readonly Sample[]>([]);
  readonly rates: Rates = $derived(this.samples.at(-1) ?? UNKNOWN);
  readonly #counted = new Counted();

  // The server's clock is ahead of this machine's by `aheadMs`.
  add(stats: QueueStats, nowMs: number, aheadMs: number): void {
    const at = nowMs / 1000;
    const rates = this.#counted.add(stats, nowMs);
    const sample = { at, waiting: Number(stats.waiting + stats.behind), lateS: lateMs(stats, nowMs + aheadMs) / 1000, ...rates };
    this.samples = [...this.samples.filter((one) => one.at > at - PAST_S && one.at < at), sample];
  }
}
