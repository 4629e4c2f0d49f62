// A page of changes, newest first. The server limits the search per request, so a page may take several.
import type { Change, ChangeFilter } from "$wire/history_pb";
import { problemOf } from "../api/client";
import type { Api, Problem } from "../api/client";

export const PAGE = 50;
// Requests without confirmation, of 4096 changes each.
const STEPS = 8;

export class Changes {
  list = $state.raw<readonly Change[]>();
  problem = $state.raw<Problem>();
  asking = $state(false);
  newest = $state(0n);
  // The oldest revision that a rollback can reach.
  oldest = $state(0n);
  // Token of the next page; empty = the end.
  next = $state("");

  readonly #api: Api;
  #end = new AbortController();
  #filter: ChangeFilter | undefined;

  constructor(api: Api) {
    this.#api = api;
  }

  // The current list stays until the response arrives.
  async ask(filter: ChangeFilter): Promise<void> {
    this.#filter = filter;
    await this.#search([], "");
  }

  async further(): Promise<void> {
    await this.#search(this.list ?? [], this.next);
  }

  stop(): void {
    this.#end.abort();
  }

  async #search(found: readonly Change[], token: string): Promise<void> {
    this.#end.abort();
    this.#end = new AbortController();
    const { signal } = this.#end;
    const filter = this.#filter;
    if (filter === undefined) return;
    this.asking = true;
    try {
      for (let step = 0; step < STEPS; step += 1) {
        const answer = await this.#api.history.listChanges({ filter, pageSize: PAGE, pageToken: token }, { signal });
        if (signal.aborted) return;
        found = [...found, ...answer.changes];
        token = answer.nextPageToken;
        this.newest = answer.revision;
        this.oldest = answer.oldestRevision;
        if (token === "" || found.length >= PAGE) break;
      }
      this.list = found;
      this.next = token;
      this.problem = undefined;
    } catch (thrown) {
      if (!signal.aborted) this.problem = problemOf(thrown);
    } finally {
      if (!signal.aborted) this.asking = false;
    }
  }
}
