// Editing of one rule: stored state, draft and validation.
//
// The server validates while the user types, by a dry-run write. A draft survives rejections, conflicts and
// an unreachable server; only the user discards it.
import { create } from "@bufbuild/protobuf";
import { PatternSchema, PolicySchema } from "$wire/policy_pb";
import { RuleSchema } from "$wire/rules_pb";
import type { Rule } from "$wire/rules_pb";
import type { Names } from "../../format/key";
import { currentRule, problemOf } from "../../api/client";
import type { Api, Problem } from "../../api/client";
import type { Attribution } from "../../parts/attribution";
import type { Kept } from "../drafts";
import { Validated } from "../validation.svelte";
import type { ValidationResult } from "../validation.svelte";
import { changes, merged } from "./changes";
import type { Change } from "./changes";
import { draftOf, policyOf } from "./draft";
import type { Draft } from "./draft";

export class Editing extends Validated<Rule> {
  // The version at the start of the edit; undefined = a new rule.
  base = $state.raw<Rule>();
  before = $state.raw<Draft>({});
  draft = $state.raw<Draft>({});
  names = $state.raw<Names>({ callerService: "*", callerCluster: "*", calleeService: "", calleeMethod: "*" });
  // Findings of its deletion; undefined = not requested, or unknown.
  removal = $state.raw<ValidationResult>();
  #begun = $state.raw<{ draft: Draft; names: Names }>({ draft: this.draft, names: this.names });
  // A viewer sees the findings too.
  mayWrite = true;
  readonly changes: readonly Change[] = $derived(changes(this.before, this.draft));
  readonly isNew = $derived(this.base === undefined);
  // Edits that would be lost; the initial draft of a new rule is none.
  readonly isTouched = $derived(this.isNew ? this.draft !== this.#begun.draft || this.names !== this.#begun.names : this.changes.length > 0);
  // Local errors show at once, the server's after its response.
  readonly #typed = $derived(policyOf(this.draft, this.base?.policy ?? create(PolicySchema)));
  readonly allFaults: ReadonlyMap<string, string> = $derived(new Map([...this.faults, ...this.#typed.faults]));
  readonly isDirty = $derived(this.changes.length > 0 || (this.isNew && this.names.calleeService !== ""));

  // Paths below the policy, and "key.caller_service".
  protected override readonly prefix = /^rule\.(policy\.)?/g;
  readonly #api: Api;

  constructor(api: Api) {
    super();
    this.#api = api;
  }

  begin(rule: Rule): void {
    this.base = rule;
    this.before = rule.policy ? draftOf(rule.policy) : {};
    this.draft = this.before;
    if (rule.key) this.names = rule.key;
    this.theirs = undefined;
    this.problem = undefined;
    this.faults = new Map();
    void this.checkStored();
    this.check();
  }

  // Starts a new rule; `draft` is the proposal.
  beginNew(names: Names | undefined, draft: Draft): void {
    this.base = undefined;
    this.before = {};
    this.draft = draft;
    if (names) this.names = names;
    this.#begun = { draft: this.draft, names: this.names };
    void this.checkStored();
    this.check();
  }

  // The draft to keep; undefined = nothing was changed.
  kept(): Kept | undefined {
    if (!this.isTouched) return undefined;
    const { callerService, callerCluster, calleeService, calleeMethod } = this.names;
    const names = { callerService, callerCluster, calleeService, calleeMethod };
    return { at: Date.now(), revision: String(this.base?.revision ?? ""), before: this.before, draft: this.draft, names };
  }

  // Applies a kept draft on top of the current version.
  restore({ before, draft, names }: Kept): void {
    if (this.isNew && names !== undefined) this.names = names;
    this.draft = this.isNew ? draft : merged(before, this.before, draft);
    this.check();
  }

  type(draft: Draft): void {
    this.draft = draft;
    this.check();
  }

  name(names: Names): void {
    this.names = names;
    this.check();
  }

  drop(): void {
    this.draft = this.before;
    this.check();
  }

  // Continues on the concurrent version, with the own changes on top.
  rebase(): void {
    const { theirs } = this;
    if (theirs === undefined) return;
    const now: Draft = theirs?.policy ? draftOf(theirs.policy) : {};
    this.draft = theirs === null ? this.draft : merged(this.before, now, this.draft);
    this.before = now;
    this.base = theirs ?? undefined;
    this.theirs = undefined;
    void this.checkStored();
    this.check();
  }

  take(): void {
    if (this.theirs) this.begin(this.theirs);
  }

  protected override request() {
    const rule = this.read();
    if (rule === undefined) return undefined;
    return this.mayWrite ? this.#api.rules.putRule({ rule, options: { validateOnly: true } }) : this.#api.rules.judgeRule({ rule });
  }

  protected override requestStored() {
    return this.base && this.#api.rules.judgeRule({ rule: this.base });
  }

  protected override current(problem: Problem): Rule | undefined {
    return currentRule(problem);
  }

  // Returns the revision of the store; undefined = not saved, see `problem`, `faults` and `theirs`.
  async save({ author, reason }: Attribution): Promise<bigint | undefined> {
    const rule = this.read();
    if (rule === undefined) return undefined;
    try {
      const answer = await this.#api.rules.putRule({
        rule,
        expectedRevision: this.base?.revision ?? 0n,
        options: { author, reason, owner: this.base?.owner ?? "" },
      });
      if (answer.rule) this.begin(answer.rule);
      return answer.revision;
    } catch (thrown) {
      this.refused(problemOf(thrown));
      return undefined;
    }
  }

  // The deletion itself reports whether it is possible.
  async checkRemoval(): Promise<void> {
    this.removal = undefined;
    this.removal = await this.#remove({ validateOnly: true }).catch(() => undefined);
  }

  async remove({ author, reason }: Attribution): Promise<bigint | undefined> {
    try {
      const answer = await this.#remove({ author, reason });
      return answer?.revision;
    } catch (thrown) {
      this.refused(problemOf(thrown));
      return undefined;
    }
  }

  async #remove(options: { author: string; reason: string } | { validateOnly: true }) {
    if (this.base === undefined) return undefined;
    const { key = create(PatternSchema), revision, owner } = this.base;
    return this.#api.rules.deleteRule({ key, expectedRevision: revision, options: { ...options, owner } });
  }

  // The draft as a rule; undefined = it cannot be sent, see `allFaults`.
  read(): Rule | undefined {
    const { policy } = this.#typed;
    if (policy === undefined) return undefined;
    const { callerService, callerCluster, calleeService, calleeMethod } = this.names;
    return create(RuleSchema, {
      key: create(PatternSchema, { callerService, callerCluster, calleeService, calleeMethod }),
      policy,
      owner: this.base?.owner ?? "",
    });
  }
}
