// Editing of one guard or queue: stored state, draft, validation and concurrent changes.
//
// A draft survives rejections, conflicts and an unreachable server; only the user discards it. Subclasses
// define the name of the object, the draft of a version, and the requests.
import { Code } from "@connectrpc/connect";
import { problemOf } from "../api/client";
import type { Problem } from "../api/client";
import type { Attribution } from "../parts/attribution";
import { isSame, merged } from "./rules/draft";
import type { Draft } from "./rules/draft";
import { Validated } from "./validation.svelte";

export interface Stored {
  readonly revision: bigint;
  readonly updatedBy: string;
}

// The draft as a message.
export interface Parsed<Written> {
  // Undefined if a value cannot be parsed.
  readonly written: Written | undefined;
  // By path.
  readonly faults: ReadonlyMap<string, string>;
}

export abstract class DraftEditing<Written extends Stored> extends Validated<Written> {
  // The version at the start of the edit; undefined = a new object.
  base = $state.raw<Written>();
  draft = $state.raw<Draft>({});
  // A viewer sees the findings too.
  mayWrite = true;
  readonly before: Draft = $derived(this.draftOf(this.base));
  readonly read: Parsed<Written> = $derived(this.parse());
  readonly isNew: boolean = $derived(this.base === undefined);
  readonly isDirty: boolean = $derived(!isSame(this.before, this.draft) || (this.isNew && this.isNamed()));
  // A new, untouched draft shows no errors.
  readonly allFaults: ReadonlyMap<string, string> = $derived(this.isNew && !this.isDirty ? new Map() : new Map([...this.faults, ...this.read.faults]));

  // Of undefined: the initial draft of a new object.
  protected abstract draftOf(version: Written | undefined): Draft;
  protected abstract parse(): Parsed<Written>;
  // A new object has been given a name.
  protected abstract isNamed(): boolean;
  // The stored object of this name.
  protected abstract fetch(): Promise<Written>;
  protected abstract put(written: Written, expectedRevision: bigint, attribution: Attribution): Promise<{ stored: Written | undefined; revision: bigint }>;
  protected abstract erase(stored: Written, attribution: Attribution): Promise<bigint>;

  begin(version: Written | undefined): void {
    this.base = version;
    this.draft = this.draftOf(version);
    this.theirs = undefined;
    this.problem = undefined;
    this.faults = new Map();
    void this.checkStored();
    this.check();
  }

  set(path: string, value: string): void {
    const draft = Object.fromEntries(Object.entries(this.draft).filter(([name]) => name !== path));
    this.type(value === "" ? draft : { ...draft, [path]: value });
  }

  type(draft: Draft): void {
    this.draft = draft;
    this.check();
  }

  // Continues on the concurrent version, with the own changes on top.
  rebase(): void {
    const { theirs, before } = this;
    if (theirs === undefined) return;
    if (theirs !== null) this.draft = merged(before, this.draftOf(theirs), this.draft);
    this.base = theirs ?? undefined;
    this.theirs = undefined;
    void this.checkStored();
    this.check();
  }

  // Checks for a concurrent change; the shell reports an unreachable server.
  async look(): Promise<void> {
    const { base } = this;
    if (base === undefined) return;
    const now = await this.#now();
    if (now === undefined || this.base !== base || now?.revision === base.revision) return;
    if (now !== null && !this.isDirty) this.begin(now);
    else this.theirs = now;
  }

  // Returns the revision of the store; undefined = not saved, see `theirs`, `faults` and `problem`.
  async save(attribution: Attribution): Promise<bigint | undefined> {
    const { written } = this.read;
    if (written === undefined) return undefined;
    try {
      const { stored, revision } = await this.put(written, this.base?.revision ?? 0n, attribution);
      if (stored) this.begin(stored);
      return revision;
    } catch (thrown) {
      this.refused(problemOf(thrown));
      return undefined;
    }
  }

  async remove(attribution: Attribution): Promise<bigint | undefined> {
    if (this.base === undefined) return undefined;
    try {
      return await this.erase(this.base, attribution);
    } catch (thrown) {
      const problem: Problem = problemOf(thrown);
      if (problem.code === Code.NotFound) this.theirs = null;
      else this.refused(problem);
      return undefined;
    }
  }

  // Undefined = unknown, null = deleted.
  async #now(): Promise<Written | null | undefined> {
    try {
      return await this.fetch();
    } catch (thrown) {
      return problemOf(thrown).code === Code.NotFound ? null : undefined;
    }
  }
}
