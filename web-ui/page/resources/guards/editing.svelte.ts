// Editing of one guard.
import { create } from "@bufbuild/protobuf";
import { PatternSchema } from "$wire/policy_pb";
import type { Guard } from "$wire/guards_pb";
import type { Names } from "../../format/key";
import { currentGuard } from "../../api/client";
import type { Api, Problem } from "../../api/client";
import type { Attribution } from "../../parts/attribution";
import { DraftEditing } from "../draft_editing.svelte";
import type { Kept } from "../drafts";
import { merged } from "../rules/draft";
import { draftOf, guardOf, OWNER } from "./form";

export class GuardEditing extends DraftEditing<Guard> {
  names = $state.raw<Names>({ callerService: "*", callerCluster: "*", calleeService: "", calleeMethod: "*" });

  // Paths below the ceiling, "key.callee_service" and "owner".
  protected override readonly prefix = /^guard\.(ceiling\.)?/g;
  readonly #api: Api;

  constructor(api: Api) {
    super();
    this.#api = api;
  }

  get owner(): string {
    return this.draft[OWNER] ?? "";
  }

  override begin(guard: Guard | undefined, names?: Names): void {
    const key = guard?.key ?? names;
    if (key) this.names = key;
    super.begin(guard);
  }

  // The draft to keep; undefined = nothing was changed.
  kept(): Kept | undefined {
    if (!this.isDirty) return undefined;
    const { callerService, callerCluster, calleeService, calleeMethod } = this.names;
    const names = { callerService, callerCluster, calleeService, calleeMethod };
    return { at: Date.now(), revision: String(this.base?.revision ?? ""), before: this.before, draft: this.draft, names };
  }

  // Applies a kept draft on top of the current version.
  restore({ before, draft, names }: Kept): void {
    if (this.isNew && names !== undefined) this.names = names;
    this.type(merged(before, this.before, draft));
  }

  protected override draftOf(guard: Guard | undefined) {
    return draftOf(guard);
  }

  protected override parse() {
    const { guard, faults } = guardOf(this.draft, this.names, this.owner.trim());
    return { written: guard, faults };
  }

  protected override isNamed(): boolean {
    return this.names.calleeService !== "";
  }

  protected override request() {
    const guard = this.read.written;
    if (guard === undefined) return undefined;
    return this.mayWrite ? this.#api.guards.putGuard({ guard, options: { validateOnly: true } }) : this.#api.guards.judgeGuard({ guard });
  }

  protected override requestStored() {
    return this.base && this.#api.guards.judgeGuard({ guard: this.base });
  }

  protected override current(problem: Problem): Guard | undefined {
    return currentGuard(problem);
  }

  protected override fetch() {
    const { callerService, callerCluster, calleeService, calleeMethod } = this.names;
    return this.#api.guards.getGuard({ key: { callerService, callerCluster, calleeService, calleeMethod } });
  }

  protected override async put(guard: Guard, expectedRevision: bigint, { author, reason }: Attribution) {
    const answer = await this.#api.guards.putGuard({ guard, expectedRevision, options: { author, reason } });
    return { stored: answer.guard, revision: answer.revision };
  }

  protected override async erase({ key = create(PatternSchema), revision }: Guard, { author, reason }: Attribution) {
    return (await this.#api.guards.deleteGuard({ key, expectedRevision: revision, options: { author, reason } })).revision;
  }
}
