// Editing of the settings of one queue.
import type { Queue } from "$wire/queues_pb";
import { currentQueue, problemOf } from "../../api/client";
import type { Api, Problem } from "../../api/client";
import type { Attribution } from "../../parts/attribution";
import { DraftEditing } from "../../resources/draft_editing.svelte";
import type { Kept } from "../../resources/drafts";
import { merged } from "../../resources/rules/draft";
import { draftOf, queueOf } from "./form";

export class QueueEditing extends DraftEditing<Queue> {
  name = $state("");

  // An error of a list names the entry; the form shows the list.
  protected override readonly prefix = /^queue\.|\[\d+\]$/g;
  readonly #api: Api;

  constructor(api: Api) {
    super();
    this.#api = api;
  }

  override begin(queue: Queue | undefined, name = ""): void {
    this.name = queue?.name ?? name;
    super.begin(queue);
  }

  rename(name: string): void {
    this.name = name;
    this.check();
  }

  // The draft to keep; undefined = nothing was changed.
  kept(): Kept | undefined {
    if (!this.isDirty) return undefined;
    return { at: Date.now(), revision: String(this.base?.revision ?? ""), before: this.before, draft: this.draft, name: this.name };
  }

  // Applies a kept draft on top of the current version.
  restore({ before, draft, name }: Kept): void {
    if (this.isNew && name !== undefined) this.name = name;
    this.type(merged(before, this.before, draft));
  }

  protected override draftOf(queue: Queue | undefined) {
    return draftOf(queue);
  }

  protected override parse() {
    return queueOf(this.draft, this.name, this.base);
  }

  protected override isNamed(): boolean {
    return this.name !== "";
  }

  protected override request() {
    const queue = this.read.written;
    return queue && this.#check(queue);
  }

  protected override requestStored() {
    return this.base && this.#check(this.base);
  }

  protected override current(problem: Problem): Queue | undefined {
    return currentQueue(problem);
  }

  protected override fetch() {
    return this.#api.queues.getQueue({ name: this.name });
  }

  protected override async put(queue: Queue, expectedRevision: bigint, { author, reason }: Attribution) {
    const answer = await this.#api.queues.putQueue({ queue, expectedRevision, options: { author, reason, owner: this.base?.owner ?? "" } });
    return { stored: answer.queue, revision: answer.revision };
  }

  protected override async erase({ name, revision, owner }: Queue, { author, reason }: Attribution) {
    return (await this.#api.queues.deleteQueue({ name, expectedRevision: revision, options: { author, reason, owner } })).revision;
  }

  // Why the server would reject the deletion; undefined = it would not.
  async refusalOfRemoval(): Promise<string | undefined> {
    const { base } = this;
    if (base === undefined) return undefined;
    const options = { validateOnly: true, owner: base.owner };
    return this.#api.queues.deleteQueue({ name: base.name, options }).then(() => undefined, (thrown: unknown) => problemOf(thrown).text);
  }

  // Only those who may write can ask for the findings.
  #check(queue: Queue) {
    return this.mayWrite ? this.#api.queues.putQueue({ queue, options: { validateOnly: true, owner: this.base?.owner ?? "" } }) : undefined;
  }
}
