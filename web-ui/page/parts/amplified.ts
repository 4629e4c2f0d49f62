// The change of the maximum amplification by a write, line by line, without unchanged values. Pure.
import type { Amplification, Bound, ChainBound } from "$wire/rules_pb";
import { some } from "../format/numbers";
import { span } from "../format/time";

// Retries that the rules allow, before and after the change; not for guards.
export interface Amplified {
  readonly before?: Amplification | undefined;
  readonly after?: Amplification | undefined;
}

export interface Line {
  readonly what: string;
  readonly before: string;
  readonly after: string;
  readonly isUp: boolean;
  // Unit of the numbers.
  readonly unit: string;
}

export function amplified(before: Amplification | undefined, after: Amplification | undefined): Line[] {
  if (before === undefined || after === undefined) return [];
  return [...ofHop(before.bound, after.bound), ...inTheLongRun(before.bound, after.bound), ...ofChain(before.chain, after.chain)];
}

function ofHop(before: Bound | undefined, after: Bound | undefined): Line[] {
  const [was, is] = [before?.maxAttempts ?? 1, after?.maxAttempts ?? 1];
  if (was === is) return [];
  return [{ what: "Attempts on this hop at most", before: String(was), after: String(is), isUp: is > was, unit: "per call" }];
}

function inTheLongRun(before: Bound | undefined, after: Bound | undefined): Line[] {
  const [was, is] = [longRun(before), longRun(after)];
  const [wasFree, isFree] = [freePerS(before), freePerS(after)];
  if (was === is && wasFree === isFree) return [];
  const isUp = is === was ? isFree > wasFree : is > was;
  // Free retries are shown on both sides if only they change.
  const free = is === was ? [freeOf(before) || "no free retries", freeOf(after) || "no free retries"] : ["", freeOf(after)];
  const words = (value: number, also: string | undefined) => (also ? `${factor(value)} (plus ${also})` : factor(value));
  return [{ what: "Sustained", before: words(was, free[0]), after: words(is, free[1]), isUp, unit: "per call" }];
}

// The sustained bound, else that of a single call.
function longRun(bound: Bound | undefined): number {
  if (bound === undefined) return 1;
  return bound.steadyAttemptsPerCall > 0 ? bound.steadyAttemptsPerCall : bound.maxAttempts;
}

function freePerS(bound: Bound | undefined): number {
  const seconds = bound?.window ? Number(bound.window.seconds) + bound.window.nanos / 1e9 : 0;
  return seconds > 0 ? (bound?.freeRetriesPerWindow ?? 0) / seconds : 0;
}

function freeOf(bound: Bound | undefined): string {
  return freePerS(bound) > 0 && bound?.window ? `${some(bound.freeRetriesPerWindow, "free retry", "free retries")} per process in ${span(bound.window)}` : "";
}

function factor(value: number): string {
  return String(Number(value.toFixed(2)));
}

function ofChain(before: ChainBound | undefined, after: ChainBound | undefined): Line[] {
  if (before === undefined || after === undefined || before.sends === after.sends) return [];
  const [was, is] = [pathOf(before), pathOf(after)];
  const isSame = was === is;
  return [{
    what: isSame ? `Attempts along ${is} at most` : "Attempts along a chain at most",
    before: isSame ? String(before.sends) : `${String(before.sends)} (${was})`,
    after: isSame ? String(after.sends) : `${String(after.sends)} (${is})`,
    isUp: after.sends > before.sends,
    unit: "per request",
  }];
}

export function pathOf({ hops }: ChainBound): string {
  return [...hops.slice(0, 1).map(({ callerService }) => callerService), ...hops.map(({ calleeService }) => calleeService)].join(" → ");
}
