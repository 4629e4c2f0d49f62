// Validation of an edit and concurrent changes of its object, for rules, guards and queues.
//
// The server validates with a dry-run write once typing has paused; responses to older drafts are dropped.
// Subclasses define the request and the message.
import { Code } from "@connectrpc/connect";
import type { Finding, RuleReach } from "$wire/admin_pb";
import { problemOf } from "../api/client";
import type { Problem } from "../api/client";
import type { Amplified } from "../parts/amplified";

const SETTLED_AFTER_MS = 300;

export interface ValidationResult extends Amplified {
  readonly findings: readonly Finding[];
  readonly reach?: RuleReach | undefined;
}

export abstract class Validated<Written> {
  // Errors by the path of a setting, without the common prefix.
  faults = $state.raw<ReadonlyMap<string, string>>(new Map());
  findings = $state.raw<readonly Finding[]>([]);
  // Findings of the stored version; undefined = unknown.
  stored = $state.raw<readonly Finding[]>();
  reach = $state.raw<RuleReach>();
  amplified = $state.raw<Amplified>();
  checking = $state(false);
  // An error that belongs to no setting.
  problem = $state.raw<Problem>();
  // A concurrent version; undefined = none, null = deleted.
  theirs = $state.raw<Written | null>();

  #timer: ReturnType<typeof setTimeout> | undefined;
  #asked = 0;
  #bases = 0;

  // Requests validation; undefined = the draft cannot be sent.
  protected abstract request(): Promise<ValidationResult> | undefined;
  // Requests the findings of the stored version; undefined = nothing is stored.
  protected abstract requestStored(): Promise<ValidationResult> | undefined;
  // The current version from the server's error.
  protected abstract current(problem: Problem): Written | undefined;
  // The parts of paths in errors that are not those of a setting, such as the common prefix.
  protected abstract readonly prefix: RegExp;

  // Requests the findings of a new stored version.
  protected async checkStored(): Promise<void> {
    this.#bases += 1;
    const asked = this.#bases;
    this.stored = undefined;
    const answer = await (this.requestStored() ?? Promise.resolve({ findings: [] })).catch(() => undefined);
    if (asked === this.#bases) this.stored = answer?.findings;
  }

  // Validates once typing has paused.
  check(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#check(), SETTLED_AFTER_MS);
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#asked += 1;
  }

  protected refused(problem: Problem): void {
    if (problem.code === Code.Aborted) {
      this.theirs = this.current(problem) ?? null;
      return;
    }
    const faults = new Map<string, string>();
    for (const [path, words] of problem.fields) {
      const setting = path.replaceAll(this.prefix, "");
      const before = faults.get(setting);
      faults.set(setting, before === undefined ? words : `${before}; ${words}`);
    }
    this.faults = faults;
    this.problem = problem.fields.size > 0 ? undefined : problem;
  }

  async #check(): Promise<void> {
    this.#asked += 1;
    const asked = this.#asked;
    const request = this.request();
    if (request === undefined) {
      this.checking = false;
      return;
    }
    this.checking = true;
    try {
      const answer = await request;
      if (asked !== this.#asked) return;
      this.faults = new Map();
      this.findings = answer.findings;
      this.reach = answer.reach;
      this.amplified = answer;
      this.problem = undefined;
    } catch (thrown) {
      if (asked === this.#asked) this.refused(problemOf(thrown));
    } finally {
      if (asked === this.#asked) this.checking = false;
    }
  }
}
