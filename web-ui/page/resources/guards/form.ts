// The ceilings of a guard as a form, and the form as a guard.
//
// Ranges and defaults come from the .proto files, and the server validates. Paths are those of the message
// below the ceiling: "repeat_limit.ratio".
import { create, toJson } from "@bufbuild/protobuf";
import type { JsonObject } from "@bufbuild/protobuf";
import { CeilingSchema, GuardSchema, HedgeCeiling } from "$wire/guards_pb";
import type { Guard } from "$wire/guards_pb";
import { Mode, PatternSchema } from "$wire/policy_pb";
import type { Names } from "../../format/key";
import { at, ON, place, refusal, sendable, shown, typed } from "../rules/draft";
import type { Draft } from "../rules/draft";
import { choices, field, help } from "../rules/form";
import type { Field } from "../rules/form";

// Equal for all ceilings.
const limits = (one: Field): Field => ({ ...one, help: `${one.help} Empty: no limit.`.trim() });

export const CEILINGS: readonly Field[] = [
  field("Ceiling", "max_attempts", "Max attempts", "number"),
  field("Ceiling", "hedge", "Hedges", "choice", choices(HedgeCeiling, "HEDGE_CEILING_", "not limited")),
  field("Ceiling", "codes", "Codes to retry", "codes"),
  field("Ceiling", "max_retry_breaker_ratio", "Max retry breaker ratio", "number"),
  field("Ceiling", "min_per_attempt_timeout", "Min timeout per attempt", "duration"),
].map(limits);

export const LIMIT = "repeat_limit";
export const LIMIT_HELP = help("RepeatLimit");
export const LIMITS: readonly Field[] = [
  field("RepeatLimit", "repeat_limit.mode", "Mode", "choice", choices(Mode, "MODE_", "default: observe")),
  field("RepeatLimit", "repeat_limit.ratio", "Retries per first attempt", "number"),
  field("RepeatLimit", "repeat_limit.min", "Retries always allowed", "number"),
];

// The path of the owner in a draft.
export const OWNER = "owner";

export function draftOf(guard: Guard | undefined): Draft {
  const draft: Record<string, string> = {};
  if (guard !== undefined && guard.owner !== "") draft[OWNER] = guard.owner;
  const ceiling = guard?.ceiling;
  if (ceiling === undefined) return draft;
  const json = toJson(CeilingSchema, ceiling, { useProtoFieldName: true }) as JsonObject;
  if (ceiling.repeatLimit !== undefined) draft[LIMIT] = ON;
  for (const { path, kind } of [...CEILINGS, ...LIMITS]) {
    const value = at(json, path);
    if (value !== undefined && value !== null) draft[path] = shown(kind, value);
  }
  return draft;
}

export interface Read {
  // Undefined if a value cannot be parsed.
  readonly guard: Guard | undefined;
  // By path.
  readonly faults: ReadonlyMap<string, string>;
}

export function guardOf(draft: Draft, names: Names, owner: string): Read {
  const json: JsonObject = {};
  const faults = new Map<string, string>();
  const isLimited = draft[LIMIT] !== undefined;
  if (isLimited) place(json, LIMIT, {});
  for (const field of isLimited ? [...CEILINGS, ...LIMITS] : CEILINGS) {
    const text = draft[field.path]?.trim() ?? "";
    if (text === "") continue;
    const value = typed(field, text);
    if (value === undefined) faults.set(field.path, refusal(field, text));
    else place(json, field.path, value);
  }
  const ceiling = faults.size === 0 ? sendable(CeilingSchema, json, faults) : undefined;
  if (ceiling === undefined) return { guard: undefined, faults };
  const { callerService, callerCluster, calleeService, calleeMethod } = names;
  const key = create(PatternSchema, { callerService, callerCluster, calleeService, calleeMethod });
  return { guard: create(GuardSchema, { key, ceiling, owner }), faults };
}
