// The predicted effect of a change of a rule or guard, as rows. Pure.
import { create } from "@bufbuild/protobuf";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Guard } from "$wire/guards_pb";
import { AmplificationSchema, Prediction_Callee as Callee } from "$wire/rules_pb";
import type { Prediction, Predicted, Rule, WhatIfRequestSchema, WhatIfResponse } from "$wire/rules_pb";
import { isHigh, rate, share, some } from "../format/numbers";
import type { Amplified } from "./amplified";
import type { Settable } from "../format/settings";

export interface Row {
  // States of the callee; several if they have the same effect.
  readonly callees: readonly string[];
  // Attempts per second.
  readonly load: Sides;
  // The difference in percent; empty = none.
  readonly extra: string;
  readonly success: Sides;
  // High amplification after the change, and higher than before.
  readonly isHigh: boolean;
}

export interface Sides {
  readonly before: string;
  readonly after: string;
}

const CALLEES: Record<Callee, string> = {
  [Callee.UNSPECIFIED]: "unknown",
  [Callee.AS_MEASURED]: "as measured",
  [Callee.TENTH_FAILING]: "at least 10 % failing",
  [Callee.OUTAGE]: "in total outage",
};

// The request; undefined = the change cannot be predicted.
export function question(before: Settable | undefined, after: Settable | undefined): MessageInitShape<typeof WhatIfRequestSchema> | undefined {
  const change = changeOf(before, after);
  // The change may overwrite an object of another owner.
  const owner = isOwned(before) ? before.owner : "";
  return change && { changes: [{ kind: change }], options: { owner } };
}

function changeOf(before: Settable | undefined, after: Settable | undefined) {
  if (after?.$typeName === "damper.v1.Rule") return { case: "put", value: after } as const;
  if (after?.$typeName === "damper.v1.Guard") return { case: "putGuard", value: after } as const;
  if (after !== undefined || !isOwned(before) || before.key === undefined) return undefined;
  return { case: before.$typeName === "damper.v1.Rule" ? "delete" : "deleteGuard", value: before.key } as const;
}

function isOwned(of: Settable | undefined): of is Rule | Guard {
  return of?.$typeName === "damper.v1.Rule" || of?.$typeName === "damper.v1.Guard";
}

// The retry limit of the callee is not simulated: it applies to all callers together.
export function hasRepeatLimit(of: Settable | undefined): boolean {
  return of?.$typeName === "damper.v1.Guard" && of.ceiling?.repeatLimit !== undefined;
}

export function rows({ together }: WhatIfResponse): Row[] {
  const all = together.flatMap(({ callee, before, after }) => (before && after ? [row(callee, before, after)] : []));
  const figures = ({ load, extra, success, isHigh }: Row) => JSON.stringify([load, extra, success, isHigh]);
  return all.filter((one, at) => all.findIndex((other) => figures(other) === figures(one)) === at)
    .map((one) => ({ ...one, callees: all.filter((other) => figures(other) === figures(one)).flatMap(({ callees }) => callees) }));
}

function row(callee: Prediction["callee"], before: Predicted, after: Predicted): Row {
  return {
    callees: [CALLEES[callee] ?? CALLEES[Callee.UNSPECIFIED]],
    load: { before: rate(before.attemptsPerS), after: rate(after.attemptsPerS) },
    extra: percent(before.attemptsPerS > 0 ? after.attemptsPerS / before.attemptsPerS - 1 : 0),
    success: { before: share(before.successShare), after: share(after.successShare) },
    isHigh: isHigh(after.attemptsPerCall) && after.attemptsPerCall > before.attemptsPerCall,
  };
}

function percent(more: number): string {
  const text = (Math.abs(more) * 100).toFixed(Math.abs(more) < 0.0995 ? 1 : 0);
  return Number(text) === 0 ? "" : `${more > 0 ? "+" : "−"}${text} %`;
}

// The highest bounds of all changed routes, per hop and along a chain.
export function worst({ routes, withoutTraffic }: WhatIfResponse): Amplified {
  const side = (of: "before" | "after") => {
    const bounds = [...routes.map((route) => route[of]?.bound), ...withoutTraffic.map((without) => without[of])];
    const bound = greatest(bounds, ({ maxAttempts }) => maxAttempts);
    const chain = greatest(routes.map((route) => route[of]?.chain), ({ sends }) => Number(sends));
    return create(AmplificationSchema, { ...(bound && { bound }), ...(chain && { chain }) });
  };
  return { before: side("before"), after: side("after") };
}

function greatest<Of>(all: readonly (Of | undefined)[], size: (of: Of) => number): Of | undefined {
  return all.filter((of) => of !== undefined).sort((a, b) => size(b) - size(a))[0];
}

// The calls that the prediction is based on.
export function basis({ routes, routesLeftOut }: WhatIfResponse): string {
  const calls = rate(routes.reduce((sum, { callsPerS }) => sum + callsPerS, 0));
  const of = routes.length === 1 ? "the route that changes" : `the ${routes.length} ${routesLeftOut > 0 ? "busiest " : ""}routes that change`;
  const others = routesLeftOut === 0 ? "" : ` ${some(routesLeftOut, "less busy route changes", "less busy routes change")} too.`;
  return `A simulation of ${of}, from the statistics of the last minute: ${calls} calls/s.${others}`;
}
