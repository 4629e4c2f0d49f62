// The stream of one route, open while its page is visible.
//
// The shared stream has every route as a mean over 10 s, from reports that arrive every few seconds. Watching
// one route makes its processes report every second, with rates over as little as 1 s. A browser has six
// connections per origin over HTTP/1.1, so the stream ends when the tab is hidden. Without it, the statistics
// of the shared stream are shown.
import { problemOf } from "../../api/client";
import type { Problem } from "../../api/client";
import { Recent, sampleOf, secondsOf } from "../../feed/past";
import type { Sample } from "../../feed/past";
import { waitMs } from "../../feed/link";
import type { RouteFailure, RouteStats, WatchResponse } from "$wire/fleet_pb";

const SILENCE_LIMIT_MS = 10_000;

export type Ask = (signal: AbortSignal) => AsyncIterable<WatchResponse>;

export class RouteWatch {
  // Undefined = the server has no such route or has not sent anything yet.
  stats = $state.raw<RouteStats>();
  // The latest failed calls; the last received ones while there is no stream.
  failures = $state.raw<readonly RouteFailure[]>([]);
  samples = $state.raw<readonly Sample[]>([]);
  // The statistics shown are from this stream.
  live = $state(false);
  problem = $state.raw<Problem>();

  readonly #recent = new Recent();
  // The server's clock is ahead of this machine's by this.
  #aheadS = 0;

  // Returns the function that ends it.
  start(ask: Ask): () => void {
    const end = new AbortController();
    void this.#run(ask, end.signal);
    return () => { end.abort(); };
  }

  // Statistics of the shared stream, used while this stream has none.
  instead(stats: RouteStats | undefined, at: number): void {
    if (this.live) return;
    this.samples = this.#recent.add(sampleOf(stats, at), this.#aheadS);
  }

  async #run(ask: Ask, signal: AbortSignal): Promise<void> {
    let failures = 0;
    while (!signal.aborted) {
      if (document.hidden) {
        await until(signal, "visibilitychange");
        continue;
      }
      const received = await this.#read(ask, signal);
      this.live = false;
      if (signal.aborted || document.hidden) continue;
      failures = received ? 1 : failures + 1;
      await until(signal, undefined, waitMs(failures, Math.random()));
    }
  }

  // Reads one stream to its end; true if it received anything.
  async #read(ask: Ask, signal: AbortSignal): Promise<boolean> {
    const attempt = new AbortController();
    const stop = () => { attempt.abort(); };
    const hidden = () => {
      if (document.hidden) stop();
    };
    signal.addEventListener("abort", stop);
    document.addEventListener("visibilitychange", hidden);
    let watchdog = setTimeout(stop, SILENCE_LIMIT_MS);
    let received = false;
    try {
      for await (const message of ask(attempt.signal)) {
        if (attempt.signal.aborted) break;
        clearTimeout(watchdog);
        watchdog = setTimeout(stop, SILENCE_LIMIT_MS);
        received = true;
        this.#take(message);
      }
    } catch (thrown) {
      if (!signal.aborted && !document.hidden) this.problem = problemOf(thrown);
    } finally {
      clearTimeout(watchdog);
      signal.removeEventListener("abort", stop);
      document.removeEventListener("visibilitychange", hidden);
      attempt.abort();
    }
    return received;
  }

  #take(message: WatchResponse): void {
    const [route] = message.routes;
    if (route !== undefined) this.stats = route;
    else if (message.reset || message.removedRoutes.length > 0) this.stats = undefined;
    if (!message.continued) this.failures = message.failures;
    this.live = true;
    this.problem = undefined;
    const at = Date.now() / 1000;
    this.#aheadS = secondsOf(message.asOf) - at;
    this.#recent.setPast(message.past);
    this.samples = this.#recent.add(sampleOf(this.stats, at), this.#aheadS);
  }
}

function until(signal: AbortSignal, event: "visibilitychange" | undefined, ms?: number): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      if (timer !== undefined) clearTimeout(timer);
      if (event !== undefined) document.removeEventListener(event, done);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = ms === undefined ? undefined : setTimeout(done, ms);
    if (event !== undefined) document.addEventListener(event, done);
    signal.addEventListener("abort", done);
  });
}
