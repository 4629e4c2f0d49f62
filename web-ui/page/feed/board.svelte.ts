// The stream as state for components: the fleet, its liveness, and the samples of the last 15 minutes.
import { timestampMs } from "@bufbuild/protobuf/wkt";
import type { Feed, Open } from "./open";
import type { Event } from "./link";
import { Recent } from "./past";
import type { Sample } from "./past";
import type { Fleet } from "./state";
import { fold, totals } from "./state";

export type Liveness = "loading" | "live" | "late" | "down" | "locked";

// Two missed messages.
const LATE_AFTER_MS = 3_500;
const MARK_MS = 5_000;
// By the reason in the server's error. A missing session has none of these.
const ENDED: Partial<Record<string, string>> = {
  CREDENTIAL_ENDED: "You were signed out: your token was revoked or has expired.",
  TOKEN_INVALID: "You were signed out: your token was revoked.",
  TOKEN_EXPIRED: "You were signed out: your token has expired.",
  SESSION_OVER: "You were signed out: your session has ended.",
};

export class Board {
  fleet = $state.raw<Fleet>();
  // Of all routes together.
  samples = $state.raw<readonly Sample[]>([]);
  // Why there is no stream; undefined = there is one, or the first is being opened.
  downReason = $state<string>();
  // The server requires a sign-in.
  locked = $state(false);
  // Why the session ended, as text; undefined = it did not, or by Sign out here.
  lockedWhy = $state<string>();
  // Of the data shown; undefined = there is none.
  ageMs = $state<number>();
  // How far the control plane's clock is ahead of this machine's.
  aheadMs = $state(0);
  // Rules changed within the last seconds.
  marked = $state.raw<ReadonlyMap<string, number>>(new Map());
  liveness = $derived.by((): Liveness => {
    if (this.locked) return "locked";
    if (this.downReason !== undefined) return "down";
    if (this.ageMs === undefined) return "loading";
    return this.ageMs > LATE_AFTER_MS ? "late" : "live";
  });

  #recent = new Recent();
  #receivedAt: number | undefined;
  #sampledAt = 0;
  #feed: Feed | undefined;

  // Returns the function that ends it.
  start(open: Open): () => void {
    const feed = open((event) => { this.take(event); });
    this.#feed = feed;
    const clock = setInterval(() => { this.#tick(); }, 500);
    return () => {
      clearInterval(clock);
      feed.close();
    };
  }

  // Reopens the stream with another identity.
  again(): void {
    this.#feed?.again();
  }

  take(event: Event): void {
    this.locked = event.kind === "locked";
    if (event.kind === "message") this.lockedWhy = undefined;
    if (event.kind === "locked") {
      // The request is retried; only the first response has the reason.
      this.lockedWhy ??= ENDED[event.why];
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
    this.#receivedAt = performance.now();
    // The first message of a stream may contain an old time.
    if (!event.message.reset && fleet.asOf !== undefined) this.aheadMs = timestampMs(fleet.asOf) - Date.now();
    this.#recent.setPast(event.message.past);
    this.#sample(fleet, event.message.continued);
    if (fleet.changed.length > 0) {
      const marked = new Map(this.marked);
      for (const key of fleet.changed) marked.set(key, this.#receivedAt);
      this.marked = marked;
    }
    this.#tick();
  }

  #forget(): void {
    this.fleet = undefined;
    this.samples = [];
    this.#recent = new Recent();
    this.downReason = undefined;
    this.ageMs = undefined;
    this.marked = new Map();
    this.#receivedAt = undefined;
  }

  // The parts of one interval form one sample: a later part replaces the sample of the earlier ones.
  #sample(fleet: Fleet, continued: boolean): void {
    if (!continued) this.#sampledAt = Date.now() / 1000;
    const { calls, attempts, errors } = totals(fleet.routes.values());
    const sample = { at: this.#sampledAt, callsPerS: calls, attemptsPerS: attempts, errorShare: errors };
    this.samples = this.#recent.add(sample, this.aheadMs / 1000);
  }

  #tick(): void {
    if (this.#receivedAt === undefined) return;
    const now = performance.now();
    this.ageMs = now - this.#receivedAt;
    if (this.marked.size === 0) return;
    const fresh = [...this.marked].filter(([, since]) => now - since < MARK_MS);
    if (fresh.length < this.marked.size) this.marked = new Map(fresh);
  }
}
