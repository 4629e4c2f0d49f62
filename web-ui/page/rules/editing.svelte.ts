// The editing of one rule: what it was, what is typed, what the server says of it.
//
// The server judges as one types, by a write that only validates. What is typed survives everything but a decision
// to drop it: refusals, conflicts, a server that goes away.
import { create } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import type { Finding, RuleReach } from "$wire/admin_pb";
import { PatternSchema, PolicySchema } from "$wire/policy_pb";
import { RuleSchema } from "$wire/rules_pb";
import type { Rule } from "$wire/rules_pb";
import type { Names } from "../address.svelte";
import { currentRule, problemOf } from "../api";
import type { Api, Problem } from "../api";
import type { Saying } from "../parts/author";
import { changes, merged } from "./changes";
import type { Change } from "./changes";
import { draftOf, policyOf } from "./draft";
import type { Draft } from "./draft";

const SETTLED_AFTER_MS = 300;

export class Editing {
  // As the server had it when the editing began; undefined = there was none.
  base = $state.raw<Rule>();
  before = $state.raw<Draft>({});
  draft = $state.raw<Draft>({});
  names = $state.raw<Names>({ callerService: "*", callerCluster: "*", calleeService: "", calleeMethod: "*" });
  // The server's words by the path of a setting, without "rule.policy."; "key.caller_service" for names.
  faults = $state.raw<ReadonlyMap<string, string>>(new Map());
  findings = $state.raw<readonly Finding[]>([]);
  reach = $state.raw<RuleReach>();
  checking = $state(false);
  // What is wrong beyond single settings.
  problem = $state.raw<Problem>();
  // What others made of the rule meanwhile; undefined = nothing, null = they removed it.
  theirs = $state.raw<Rule | null>();

  readonly changes: readonly Change[] = $derived(changes(this.before, this.draft));
  readonly isNew = $derived(this.base === undefined);
  readonly isDirty = $derived(this.changes.length > 0 || (this.isNew && this.names.calleeService !== ""));

  readonly #api: Api;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #asked = 0;

  constructor(api: Api) {
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
    this.check();
  }

  // Nothing is there yet; `policy` is what is proposed.
  beginNew(names: Names | undefined, draft: Draft): void {
    this.base = undefined;
    this.before = {};
    this.draft = draft;
    if (names) this.names = names;
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

  // Goes on upon what others made of it, with what was typed on top.
  rebase(): void {
    const { theirs } = this;
    if (theirs === undefined) return;
    const now: Draft = theirs?.policy ? draftOf(theirs.policy) : {};
    this.draft = theirs === null ? this.draft : merged(this.before, now, this.draft);
    this.before = now;
    this.base = theirs ?? undefined;
    this.theirs = undefined;
    this.check();
  }

  take(): void {
    if (this.theirs) this.begin(this.theirs);
  }

  // Asks the server, once typing has paused.
  check(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#check(), SETTLED_AFTER_MS);
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#asked += 1;
  }

  // Undefined = it is written at this revision; else why not is in `problem`, `faults` or `theirs`.
  async save({ author, reason }: Saying): Promise<bigint | undefined> {
    const rule = this.#rule();
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
      this.#refused(problemOf(thrown));
      return undefined;
    }
  }

  async remove({ author, reason }: Saying): Promise<bigint | undefined> {
    if (this.base === undefined) return undefined;
    try {
      const { key = create(PatternSchema), revision, owner } = this.base;
      const answer = await this.#api.rules.deleteRule({ key, expectedRevision: revision, options: { author, reason, owner } });
      return answer.revision;
    } catch (thrown) {
      this.#refused(problemOf(thrown));
      return undefined;
    }
  }

  #rule(): Rule | undefined {
    const { policy, faults } = policyOf(this.draft, this.base?.policy ?? create(PolicySchema));
    if (policy === undefined) {
      this.faults = faults;
      return undefined;
    }
    const { callerService, callerCluster, calleeService, calleeMethod } = this.names;
    return create(RuleSchema, {
      key: create(PatternSchema, { callerService, callerCluster, calleeService, calleeMethod }),
      policy,
      owner: this.base?.owner ?? "",
    });
  }

  async #check(): Promise<void> {
    const rule = this.#rule();
    this.#asked += 1;
    if (rule === undefined) return;
    const asked = this.#asked;
    this.checking = true;
    try {
      const answer = await this.#api.rules.putRule({ rule, options: { validateOnly: true } });
      if (asked !== this.#asked) return;
      this.faults = new Map();
      this.findings = answer.findings;
      this.reach = answer.reach;
      this.problem = undefined;
    } catch (thrown) {
      if (asked === this.#asked) this.#refused(problemOf(thrown));
    } finally {
      if (asked === this.#asked) this.checking = false;
    }
  }

  #refused(problem: Problem): void {
    if (problem.code === Code.Aborted) {
      this.theirs = currentRule(problem) ?? null;
      return;
    }
    this.faults = new Map([...problem.fields].map(([path, words]) => [path.replace(/^rule\.(policy\.)?/, ""), words]));
    this.problem = problem.fields.size > 0 ? undefined : problem;
  }
}
