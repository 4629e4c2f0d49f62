// Editing of one guard: stored state, draft, validation and concurrent changes.
//
// A draft survives rejections, conflicts and an unreachable server; only the user discards it.
import { create } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { PatternSchema } from "$wire/policy_pb";
import type { Guard } from "$wire/guards_pb";
import type { Names } from "../../format/key";
import { currentGuard, problemOf } from "../../api/client";
import type { Api, Problem } from "../../api/client";
import type { Attribution } from "../../parts/attribution";
import type { Kept } from "../drafts";
import { Validated } from "../validation.svelte";
import type { Draft } from "../rules/draft";
import { draftOf, guardOf, isSame, merged } from "./form";

export class GuardEditing extends Validated<Guard> {
  // The version at the start of the edit; undefined = a new guard.
  base = $state.raw<Guard>();
  draft = $state.raw<Draft>({});
  owner = $state("");
  names = $state.raw<Names>({ callerService: "*", callerCluster: "*", calleeService: "", calleeMethod: "*" });

  // A viewer sees the findings too.
  mayWrite = true;
  readonly before: Draft = $derived(draftOf(this.base?.ceiling));
  readonly read = $derived(guardOf(this.draft, this.names, this.owner.trim()));
  readonly isNew: boolean = $derived(this.base === undefined);
  readonly isBlank: boolean = $derived(Object.keys(this.draft).length === 0);
  readonly isDirty: boolean = $derived(
    !isSame(this.before, this.draft) || this.owner.trim() !== (this.base?.owner ?? "") || (this.isNew && this.names.calleeService !== ""),
  );
  // A new, untouched draft shows no errors.
  readonly allFaults: ReadonlyMap<string, string> = $derived(this.isNew && !this.isDirty && this.isBlank ? new Map() : new Map([...this.faults, ...this.read.faults]));

  // Paths below the ceiling, "key.callee_service" and "owner".
  protected override readonly prefix = /^guard\.(ceiling\.)?/;
  readonly #api: Api;

  constructor(api: Api) {
    super();
    this.#api = api;
  }

  begin(guard: Guard | undefined, names?: Names): void {
    this.base = guard;
    this.draft = draftOf(guard?.ceiling);
    this.owner = guard?.owner ?? "";
    const key = guard?.key ?? names;
    if (key) this.names = key;
    this.theirs = undefined;
    this.problem = undefined;
    this.faults = new Map();
    void this.checkStored();
    this.check();
  }

  // The draft to keep; undefined = nothing was changed.
  kept(): Kept | undefined {
    if (!this.isDirty) return undefined;
    const { callerService, callerCluster, calleeService, calleeMethod } = this.names;
    const names = { callerService, callerCluster, calleeService, calleeMethod };
    return { at: Date.now(), revision: String(this.base?.revision ?? ""), before: this.before, draft: this.draft, names, owner: this.owner };
  }

  // Applies a kept draft on top of the current version.
  restore({ before, draft, names, owner }: Kept): void {
    if (this.isNew) this.names = names;
    this.draft = merged(before, this.before, draft);
    this.owner = owner ?? this.owner;
    this.check();
  }

  set(path: string, value: string): void {
    const draft = Object.fromEntries(Object.entries(this.draft).filter(([name]) => name !== path));
    this.draft = value === "" ? draft : { ...draft, [path]: value };
    this.check();
  }

  // Continues on the concurrent version, with the own changes on top.
  rebase(): void {
    const { theirs, before, base } = this;
    if (theirs === undefined) return;
    this.draft = merged(theirs === null ? {} : before, draftOf(theirs?.ceiling), this.draft);
    if (theirs !== null && this.owner.trim() === (base?.owner ?? "")) this.owner = theirs.owner;
    this.base = theirs ?? undefined;
    this.theirs = undefined;
    void this.checkStored();
    this.check();
  }

  protected override request() {
    const { guard } = this.read;
    if (guard === undefined) return undefined;
    return this.mayWrite ? this.#api.guards.putGuard({ guard, options: { validateOnly: true } }) : this.#api.guards.judgeGuard({ guard });
  }

  protected override requestStored() {
    return this.base && this.#api.guards.judgeGuard({ guard: this.base });
  }

  protected override current(problem: Problem): Guard | undefined {
    return currentGuard(problem);
  }

  // Checks for a concurrent change; the shell reports an unreachable server.
  async look(): Promise<void> {
    const { base } = this;
    if (base?.key === undefined) return;
    const now = await this.#now(base.key);
    if (now === undefined || this.base !== base || now?.revision === base.revision) return;
    if (now !== null && !this.isDirty) this.begin(now);
    else this.theirs = now;
  }

  // Returns the revision of the store; undefined = not saved, see `theirs`, `faults` and `problem`.
  async save({ author, reason }: Attribution): Promise<bigint | undefined> {
    const { guard } = this.read;
    if (guard === undefined) return undefined;
    try {
      const answer = await this.#api.guards.putGuard({ guard, expectedRevision: this.base?.revision ?? 0n, options: { author, reason } });
      if (answer.guard) this.begin(answer.guard);
      return answer.revision;
    } catch (thrown) {
      this.refused(problemOf(thrown));
      return undefined;
    }
  }

  async remove({ author, reason }: Attribution): Promise<bigint | undefined> {
    if (this.base === undefined) return undefined;
    try {
      const { key = create(PatternSchema), revision } = this.base;
      return (await this.#api.guards.deleteGuard({ key, expectedRevision: revision, options: { author, reason } })).revision;
    } catch (thrown) {
      const problem = problemOf(thrown);
      if (problem.code === Code.NotFound) this.theirs = null;
      else this.refused(problem);
      return undefined;
    }
  }

  // Undefined = unknown, null = deleted.
  async #now(key: Names): Promise<Guard | null | undefined> {
    const { callerService, callerCluster, calleeService, calleeMethod } = key;
    try {
      return await this.#api.guards.getGuard({ key: { callerService, callerCluster, calleeService, calleeMethod } });
    } catch (thrown) {
      return problemOf(thrown).code === Code.NotFound ? null : undefined;
    }
  }
}
