// The object of a change as text and in the address.
import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { ChangeFilterSchema, ObjectKind } from "$wire/history_pb";
import type { Change, ChangeFilter, Object$, ObjectChange, ObjectKey } from "$wire/history_pb";
import type { Pattern } from "$wire/policy_pb";
import { JobActionKind } from "$wire/queues_pb";
import { hrefOf, namesIn } from "../context/address.svelte";
import { keyText } from "../format/key";
import type { Address } from "../context/address.svelte";
import type { Settable } from "../format/settings";

export type Kind = "rule" | "guard" | "queue" | "kill" | "token" | "jobs";

export const KINDS: Record<Kind, ObjectKind> = {
  rule: ObjectKind.RULE,
  guard: ObjectKind.GUARD,
  queue: ObjectKind.QUEUE,
  kill: ObjectKind.KILL,
  token: ObjectKind.TOKEN,
  jobs: ObjectKind.JOBS,
};

export function kindOf(key: ObjectKey | undefined): Kind {
  return key?.kind.case ?? "rule";
}

export function nameOf(key: ObjectKey | undefined): string {
  const value = key?.kind.value;
  return typeof value === "string" ? value : keyText(value);
}

// A token has a name; its key contains only the id.
export function titleOf({ key, before, after }: ObjectChange): string {
  const token = [after, before].map((object) => object?.kind).find((kind) => kind?.case === "token")?.value;
  return token === undefined ? nameOf(key) : `${token.name} (${token.id})`;
}

export function patternOf(key: ObjectKey | undefined): Pattern | undefined {
  const value = key?.kind.value;
  return typeof value === "string" ? undefined : value;
}

// Kills end with their incident; a revoked token stays revoked.
export function canGoBack(key: ObjectKey | undefined): boolean {
  return key?.kind.case === "rule" || key?.kind.case === "guard" || key?.kind.case === "queue";
}

export function settable(object: Object$ | undefined): Settable | undefined {
  return object?.kind.value;
}

const VERBS: Record<Kind, readonly [string, string, string]> = {
  rule: ["created", "changed", "removed"],
  guard: ["created", "changed", "removed"],
  queue: ["created", "changed", "removed"],
  kill: ["set", "changed", "ended"],
  token: ["created", "changed", "revoked"],
  jobs: ["changed", "changed", "changed"],
};

// What an operator did with jobs.
const ACTIONS: Record<JobActionKind, string> = {
  [JobActionKind.UNSPECIFIED]: "changed",
  [JobActionKind.RUN]: "made due",
  [JobActionKind.CANCEL]: "cancelled",
  [JobActionKind.REPLAY]: "replayed",
  [JobActionKind.PURGE]: "purged",
  [JobActionKind.PURGE_QUEUE]: "purged with their queue",
  [JobActionKind.READ_BODY]: "read",
};

export function verbOf({ key, before, after }: ObjectChange): string {
  if (after?.kind.case === "jobs") return ACTIONS[after.kind.value.kind];
  return VERBS[kindOf(key)][before === undefined ? 0 : after === undefined ? 2 : 1];
}

// The author of a change: the proven identity before the declared name. A change without an address is by the
// server.
export function whoOf({ author, principal, peer }: Change): string {
  return principal || author || (peer === "" ? "the server" : "unknown");
}

// The declared name, if the proven one differs; else empty.
export function declaredOf({ author, principal }: Change): string {
  return principal === "" || author === "" || principal.startsWith(`token ${author} (`) ? "" : `as ${author}`;
}

// The time since, in one unit.
export function ago(at: { seconds: bigint } | undefined, now: number): string {
  if (at === undefined || now === 0) return "";
  const s = Math.max(now - Number(at.seconds), 0);
  if (s < 60) return "just now";
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 48 * 3600) return `${Math.floor(s / 3600)} h ago`;
  return `${Math.floor(s / 86_400)} days ago`;
}

// The page of the object; undefined = none.
export function pageOf(key: ObjectKey | undefined): string | undefined {
  const of = key?.kind;
  if (of?.case === "rule" || of?.case === "guard") return hrefOf(`/${of.case}`, of.value);
  return of?.case === "queue" ? `/queue?${new URLSearchParams({ name: of.value }).toString()}` : undefined;
}

// The history of one rule or guard.
export function historyOf(kind: "rule" | "guard", { callerService, callerCluster, calleeService, calleeMethod }: Pattern): string {
  const names = { caller: callerService, cluster: callerCluster, callee: calleeService, method: calleeMethod };
  return `/history?${new URLSearchParams({ kind, ...names }).toString()}`;
}

// The history of one queue, or of queues whose names contain this one.
export function historyOfQueue(name: string): string {
  return `/history?${new URLSearchParams({ kind: "queue", q: name }).toString()}`;
}

// Without bounds of revisions.
export function filterIn(address: Address): ChangeFilter {
  const kind = address.get("kind");
  const names = namesIn(address);
  const filter = create(ChangeFilterSchema, {
    names: { ...names, text: address.get("q").trim() },
    kind: Object.hasOwn(KINDS, kind) ? KINDS[kind as Kind] : ObjectKind.UNSPECIFIED,
    author: address.get("author").trim(),
  });
  const [since, until] = [momentIn(address, "since"), momentIn(address, "until")];
  if (since) filter.since = timestampFromDate(since);
  if (until) filter.until = timestampFromDate(until);
  return filter;
}

// Times in the address are in UTC, so that a link means the same everywhere.
export function momentIn(address: Address, name: "since" | "until"): Date | undefined {
  const date = new Date(address.get(name));
  return Number.isNaN(date.getTime()) ? undefined : date;
}

// The format of a datetime-local field.
export function localText(date: Date | undefined): string {
  if (date === undefined) return "";
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

export function utcText(date: Date): string {
  return `${date.toISOString().slice(0, 16)}Z`;
}

export function revisionIn(address: Address, name: string): bigint | undefined {
  const text = address.get(name);
  return /^\d{1,19}$/.test(text) ? BigInt(text) : undefined;
}
