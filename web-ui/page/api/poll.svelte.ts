// A request that is sent at an interval while its result is shown.
import { problemOf } from "./client";
import type { Problem } from "./client";

export class Poll<Answer> {
  answer = $state.raw<Answer>();
  problem = $state.raw<Problem>();
  // By this machine's clock; undefined = never.
  answeredAt = $state<number>();
  asking = $state(false);

  readonly #ask: (signal: AbortSignal) => Promise<Answer>;
  readonly #everyMs: number;
  #end = new AbortController();

  constructor(ask: (signal: AbortSignal) => Promise<Answer>, everyMs: number) {
    this.#ask = ask;
    this.#everyMs = everyMs;
  }

  // Asks at once, then at every interval while the tab is visible. Returns the function that ends it.
  start(): () => void {
    this.#end = new AbortController();
    const { signal } = this.#end;
    void this.#run(signal);
    return () => { this.#end.abort(); };
  }

  // Asks now, independent of the interval.
  async now(): Promise<void> {
    await this.#once(this.#end.signal);
  }

  async #run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      if (!document.hidden) await this.#once(signal);
      await new Promise((resolve) => setTimeout(resolve, this.#everyMs));
    }
  }

  async #once(signal: AbortSignal): Promise<void> {
    this.asking = true;
    try {
      const answer = await this.#ask(signal);
      if (signal.aborted) return;
      this.answer = answer;
      this.answeredAt = Date.now();
      this.problem = undefined;
    } catch (thrown) {
      if (!signal.aborted) this.problem = problemOf(thrown);
    } finally {
      this.asking = false;
    }
  }
}
