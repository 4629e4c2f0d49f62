// The stream as the components see it: the fleet, whether it is live, and the last two minutes.
import { timestampMs } from "@bufbuild/protobuf/wkt";
import type { Feed, Open } from "./open";
import type { Event } from "./link";
import { Past } from "./past";
import type { Fleet } from "./state";
import { fold, totals } from "./state";

export interface Sample {
  // Seconds since the epoch, by this machine's clock.
  readonly at: number;
  readonly amplification: number | undefined;
  readonly errors: number | undefined;
}

export type Liveness = "loading" | "live" | "late" | "down" | "locked";

// Two messages missed: worth a mark, not yet an alarm.
const LATE_AFTER_MS = 3_500;
// The chart's window and a little more, so that its line enters from outside.
const KEPT_S = 130;
const MARK_MS = 5_000;

export class Board {
  fleet = $state.raw<Fleet>();
  samples = $state.raw<readonly Sample[]>([]);
  // Of single routes, for whoever opens one.
  readonly past = new Past();
  // Why there is no stream; undefined = there is one, or the first is being opened.
  downReason = $state<string>();
  // The server wants to know who is asking.
  locked = $state(false);
  // Of the data shown; undefined = there is none.
  ageMs = $state<number>();
  // By how much the control plane's clock is ahead of this machine's.
  aheadMs = $state(0);
  // Rules changed within the last seconds.
  marked = $state.raw<ReadonlyMap<string, number>>(new Map());
  liveness = $derived.by((): Liveness => {
    if (this.locked) return "locked";
    if (this.downReason !== undefined) return "down";
    if (this.ageMs === undefined) return "loading";
    return this.ageMs > LATE_AFTER_MS ? "late" : "live";
  });

  #heardAt: number | undefined;
  #feed: Feed | undefined;

  // Returns what ends it.
  start(open: Open): () => void {
    const feed = open((event) => { this.take(event); });
    this.#feed = feed;
    const clock = setInterval(() => { this.#tick(); }, 500);
    return () => {
      clearInterval(clock);
      feed.close();
    };
  }

  // Who asks has changed.
  again(): void {
    this.#feed?.again();
  }

  take(event: Event): void {
    this.locked = event.kind === "locked";
    if (event.kind === "locked") {
      this.#forget();
      return;
    }
    if (event.kind === "down") {
      this.downReason = event.reason;
      this.#tick();
      return;
    }
    const fleet = fold(this.fleet, event.message);
    if (fleet === undefined) return;
    this.fleet = fleet;
    this.downReason = undefined;
    this.#heardAt = performance.now();
    // The first of a stream may be an old one, told again.
    if (!event.message.reset && fleet.asOf !== undefined) this.aheadMs = timestampMs(fleet.asOf) - Date.now();
    this.#sample(fleet);
    if (fleet.changed.length > 0) {
      const marked = new Map(this.marked);
      for (const key of fleet.changed) marked.set(key, this.#heardAt);
      this.marked = marked;
    }
    this.#tick();
  }

  #forget(): void {
    this.fleet = undefined;
    this.samples = [];
    this.past.forget();
    this.downReason = undefined;
    this.ageMs = undefined;
    this.marked = new Map();
    this.#heardAt = undefined;
  }

  #sample(fleet: Fleet): void {
    const at = Date.now() / 1000;
    const kept = this.samples.filter((sample) => sample.at > at - KEPT_S && sample.at < at);
    this.samples = [...kept, { at, ...totals(fleet.routes.values()) }];
    this.past.take(fleet.routes, at);
  }

  #tick(): void {
    if (this.#heardAt === undefined) return;
    const now = performance.now();
    this.ageMs = now - this.#heardAt;
    if (this.marked.size === 0) return;
    const fresh = [...this.marked].filter(([, since]) => now - since < MARK_MS);
    if (fresh.length < this.marked.size) this.marked = new Map(fresh);
  }
}
