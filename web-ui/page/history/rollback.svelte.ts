// A rollback: its effect, findings and problems before it is confirmed. A dry-run write finds them; a
// concurrent change triggers another one.
import { create } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import type { Finding, RuleReach } from "$wire/admin_pb";
import { ObjectKeySchema } from "$wire/history_pb";
import type { ObjectKey } from "$wire/history_pb";
import { RuleResult_Change as Outcome } from "$wire/rules_pb";
import type { ApplyRulesResponse, RuleResult } from "$wire/rules_pb";
import { problemOf } from "../api/client";
import type { Api, Problem } from "../api/client";
import type { Attribution } from "../parts/attribution";
import type { Settable } from "../format/settings";
import { settable } from "./objects";

export interface Wish {
  // Undefined = all rules, guards and queues.
  readonly key: ObjectKey | undefined;
  readonly to: bigint;
  // The subject, as the begin of a sentence.
  readonly words: string;
}

export class Rollback {
  readonly wish: Wish;
  // The current and the restored version; of a rollback of everything neither.
  now = $state.raw<Settable>();
  then = $state.raw<Settable>();
  answer = $state.raw<ApplyRulesResponse>();
  problem = $state.raw<Problem>();
  // It changed while the dialog was open.
  moved = $state(false);
  force = $state(false);

  readonly changed: readonly RuleResult[] = $derived(
    (this.answer?.results ?? []).filter(({ change }) => change !== Outcome.UNCHANGED),
  );
  readonly findings: readonly Finding[] = $derived((this.answer?.results ?? []).flatMap(({ findings }) => findings));
  readonly reach: RuleReach | undefined = $derived(this.answer?.results[0]?.reach);
  readonly total: number = $derived(this.answer ? this.answer.created + this.answer.updated + this.answer.deleted : 0);
  // The server accepts it with force.
  readonly wantsForce: boolean = $derived([...(this.problem?.fields.values() ?? [])].some((words) => words.includes("override it with force")));

  readonly #api: Api;
  #expected: bigint | undefined;
  #requestId = "";

  constructor(api: Api, wish: Wish) {
    this.#api = api;
    this.wish = wish;
  }

  async ask(): Promise<void> {
    this.answer = undefined;
    this.problem = undefined;
    this.#requestId = drawn();
    try {
      if (this.wish.key !== undefined) await this.#look(this.wish.key);
      else this.#expected = undefined;
      const answer = await this.#send({ author: "", reason: "" }, true);
      // A rollback of everything is checked at one revision and written only at that revision.
      if (this.wish.key === undefined) this.#expected = answer.revision;
      this.answer = answer;
    } catch (thrown) {
      this.problem = problemOf(thrown);
    }
  }

  // Returns its revision. The caller shows errors.
  async carryOut(attribution: Attribution): Promise<bigint> {
    try {
      return (await this.#send(attribution, false)).revision;
    } catch (thrown) {
      const problem = problemOf(thrown);
      if (problem.code !== Code.Aborted) throw thrown;
      await this.ask();
      this.moved = true;
      throw new ConnectError("It changed meanwhile; nothing was written. The dialog shows the current state.", Code.Aborted);
    }
  }

  async #look(key: ObjectKey): Promise<void> {
    const [now, then] = await Promise.all([this.#at(key, undefined), this.#at(key, this.wish.to)]);
    this.now = now;
    this.then = then;
    this.#expected = now !== undefined && "revision" in now ? now.revision : 0n;
  }

  async #at(key: ObjectKey, revision: bigint | undefined): Promise<Settable | undefined> {
    try {
      return settable(await this.#api.history.getObject(revision === undefined ? { key } : { key, revision }));
    } catch (thrown) {
      if (problemOf(thrown).code === Code.NotFound) return undefined;
      throw thrown;
    }
  }

  #send({ author, reason }: Attribution, validateOnly: boolean): Promise<ApplyRulesResponse> {
    const { key, to } = this.wish;
    const options = {
      author,
      // A rollback of everything requires a reason before it is written.
      reason: reason.trim() || (validateOnly || key !== undefined ? `rollback to revision ${to}` : ""),
      force: this.force,
      validateOnly,
      requestId: validateOnly ? "" : this.#requestId,
    };
    const expected = this.#expected === undefined ? {} : { expectedRevision: this.#expected };
    return key === undefined
      ? this.#api.history.rollbackAll({ toRevision: to, ...expected, options })
      : this.#api.history.rollback({ key: create(ObjectKeySchema, key), toRevision: to, ...expected, options });
  }
}

// Makes a retried request take effect once. crypto.randomUUID needs https.
function drawn(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
