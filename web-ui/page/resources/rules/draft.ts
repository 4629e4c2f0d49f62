// A policy as a draft: one text per setting, by its path. A queue is one with the sections of its own form.
//
// Made from the message's JSON and converted back to it, so that settings that the form does not know
// (composed backoffs) are kept. Reports only values that cannot be parsed; the server checks the ranges.
import { fromJson, toJson } from "@bufbuild/protobuf";
import type { DescMessage, JsonObject, JsonValue, MessageShape } from "@bufbuild/protobuf";
import { PolicySchema } from "$wire/policy_pb";
import type { Policy } from "$wire/policy_pb";
import { allFields, SECTIONS } from "./form";
import type { Draft, Field, Kind, Section, Variants } from "./form";

// The path of a section or variant is present if it is selected.
export type { Draft };

// Marks a selected section.
export const ON = "on";
// A variant that the form does not support.
export const OTHER = "other";

export function draftOf(policy: Policy): Draft {
  return draftIn(toJson(PolicySchema, policy, { useProtoFieldName: true }) as JsonObject, SECTIONS);
}

// The settings of these sections.
export function draftIn(json: JsonObject, sections: readonly Section[]): Draft {
  const draft: Record<string, string> = {};
  for (const section of sections) {
    if (section.path !== "" && at(json, section.path) !== undefined) draft[section.path] = ON;
    for (const field of allFields(section)) {
      const value = at(json, field.path);
      if (value !== undefined && value !== null) draft[field.path] = shown(field.kind, value);
    }
    const variant = section.variants && chosen(section.variants, json);
    if (section.variants && variant !== undefined) draft[section.variants.path] = variant;
  }
  return draft;
}

export function without(draft: Draft, path: string): Draft {
  return Object.fromEntries(Object.entries(draft).filter(([name]) => name !== path));
}

export interface Read {
  // Undefined if a value cannot be parsed.
  readonly policy: Policy | undefined;
  // By path.
  readonly faults: ReadonlyMap<string, string>;
}

// `base` has the settings that the form does not know.
export function policyOf(draft: Draft, base: Policy): Read {
  const original = toJson(PolicySchema, base, { useProtoFieldName: true }) as JsonObject;
  const { json, faults } = jsonOf(draft, original, SECTIONS);
  // The form does not edit these codes.
  const counted = at(original, "retry_breaker.failure_codes");
  if (counted !== undefined && json["retry_breaker"] !== undefined) place(json, "retry_breaker.failure_codes", counted);
  return { policy: faults.size === 0 ? sendable(PolicySchema, json, faults) : undefined, faults };
}

// The settings of these sections as JSON. `original` has the variants that the form does not know.
export function jsonOf(draft: Draft, original: JsonObject, sections: readonly Section[]): { json: JsonObject; faults: Map<string, string> } {
  const json: JsonObject = {};
  const faults = new Map<string, string>();
  const put = (field: Field) => {
    const text = draft[field.path]?.trim() ?? "";
    if (text === "") return;
    const value = typed(field, text);
    if (value === undefined) faults.set(field.path, refusal(field, text));
    else place(json, field.path, value);
  };
  for (const section of sections) {
    if (section.path !== "") {
      if (draft[section.path] === undefined) continue;
      place(json, section.path, {});
    }
    section.fields.forEach(put);
    const { variants } = section;
    if (variants === undefined) continue;
    const name = draft[variants.path];
    if (name === OTHER) {
      place(json, variants.path, at(original, variants.path) ?? {});
      continue;
    }
    const variant = variants.of.find((one) => one.name === name);
    if (variant === undefined) continue;
    // A variant that is a message is present even without settings.
    if (!variant.fields.some(({ path }) => path === `${variants.path}.${variant.name}`)) place(json, `${variants.path}.${variant.name}`, {});
    variant.fields.forEach(put);
  }
  return { json, faults };
}

// A value that the wire cannot carry is an error of the draft.
export function sendable<Desc extends DescMessage>(schema: Desc, json: JsonObject, faults: Map<string, string>): MessageShape<Desc> | undefined {
  try {
    return fromJson(schema, json);
  } catch (thrown) {
    faults.set("", `Cannot be sent: ${thrown instanceof Error ? thrown.message : String(thrown)}`);
    return undefined;
  }
}

function chosen(variants: Variants, json: JsonObject): string | undefined {
  const value = at(json, variants.path);
  if (value === undefined || value === null || typeof value !== "object") return undefined;
  const name = Object.keys(value)[0];
  if (name === undefined) return undefined;
  return variants.of.some((one) => one.name === name) ? name : OTHER;
}

const FORMS: Record<Kind, string> = {
  duration: "a time such as 250ms, 1.5s or 2min",
  durations: "a list of times such as 50ms, 100ms, 1s",
  number: "a number such as 3 or 0.5",
  switch: "yes or no",
  choice: "one of the choices",
  codes: "a list of codes",
  list: "a list",
  bytes: "a size such as 256 KiB or 1 GiB",
  text: "a text",
};

// The error of a value that cannot be parsed.
export function refusal({ kind, largest, help }: Field, text: string): string {
  if (kind !== "number" || largest === undefined) return `${JSON.stringify(text)} is not ${FORMS[kind]}.`;
  const range = /\b\d+ to \d+\b/.exec(help)?.[0];
  return `${JSON.stringify(text)} is not a whole number${range === undefined ? "" : ` from ${range}`}.`;
}

export function shown(kind: Kind, value: JsonValue): string {
  switch (kind) {
    case "duration":
      return shownTime(value);
    case "durations":
      return Array.isArray(value) ? value.map(shownTime).join(", ") : "";
    case "codes":
      return shownCodes(value);
    case "list":
      return Array.isArray(value) ? value.map(String).join(", ") : "";
    case "bytes":
      return shownSize(BigInt(String(value)));
    default:
      return typeof value === "object" ? "" : String(value);
  }
}

// Undefined = see `refusal`.
export function typed({ kind, largest }: Pick<Field, "kind" | "largest">, text: string): JsonValue | undefined {
  switch (kind) {
    case "duration":
      return time(text);
    case "durations": {
      const times = text.split(",").map((part) => time(part));
      return times.every((one) => one !== undefined) ? times : undefined;
    }
    case "number":
      return largest === undefined ? fraction(text) : integer(text, largest);
    case "switch":
      return text === "true";
    case "choice":
      // A number is an enum value without a name here.
      if (/^\d+$/.test(text)) return Number(text);
      return text === "true" || text === "false" ? text === "true" : text;
    case "codes":
      return codes(text);
    case "list":
      return text.split(",").map((part) => part.trim()).filter((part) => part !== "");
    case "bytes":
      return size(text, largest ?? 0n);
    case "text":
      return text;
  }
}

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];

// Exact: the largest unit without a fraction.
function shownSize(bytes: bigint): string {
  let [value, unit] = [bytes, 0];
  while (value !== 0n && value % 1024n === 0n && unit < SIZES.length - 1) [value, unit] = [value / 1024n, unit + 1];
  return `${value} ${SIZES[unit] ?? ""}`;
}

// "1 GiB" becomes "1073741824"; a number without a unit is bytes.
function size(text: string, largest: bigint): string | undefined {
  const [, count, name = "b"] = /^(\d+)\s*([kmgt]?i?b)?$/i.exec(text) ?? [];
  const unit = SIZES.findIndex((one) => one.toLowerCase() === name.toLowerCase());
  if (count === undefined || unit < 0) return undefined;
  const bytes = BigInt(count) * 1024n ** BigInt(unit);
  return bytes <= largest ? String(bytes) : undefined;
}

function fraction(text: string): number | undefined {
  const value = /^-?\d+(\.\d+)?$/.test(text) ? Number(text) : undefined;
  return Number.isFinite(value) ? value : undefined;
}

// As text: JSON's own numbers are exact up to 2^53 only.
function integer(text: string, largest: bigint): string | undefined {
  return /^\d+$/.test(text) && BigInt(text) <= largest ? text : undefined;
}

// "allow UNAVAILABLE ABORTED", "deny INTERNAL".
function shownCodes(value: JsonValue): string {
  const [kind, list] = Object.entries(value as Record<string, { codes?: string[] }>)[0] ?? [];
  if (kind === undefined) return "";
  return [kind, ...(list?.codes ?? []).map((code) => code.replace(/^CODE_/, ""))].join(" ");
}

function codes(text: string): JsonValue | undefined {
  const [kind, ...names] = text.split(/\s+/);
  if (kind !== "allow" && kind !== "deny") return undefined;
  return { [kind]: { codes: names.map((name) => `CODE_${name}`) } };
}

const UNITS: readonly (readonly [string, number])[] = [["h", 3600e6], ["min", 60e6], ["s", 1e6], ["ms", 1e3], ["us", 1]];

// The longest duration of the wire.
const LONGEST_US = 315_576_000_000 * 1e6;

// "0.025s" becomes "25ms": the largest unit with at most three decimal places.
function shownTime(value: JsonValue): string {
  const us = Math.round(Number(String(value).replace(/s$/, "")) * 1e6);
  if (us === 0) return "0s";
  const [unit, size] = UNITS.find(([, length]) => Math.abs(us) >= length && Number.isInteger((us * 1000) / length)) ?? ["us", 1];
  return `${us / size}${unit}`;
}

// "250ms" and "1min 30s" become "0.25s" and "90s".
export function time(text: string): string | undefined {
  const entered = text.trim().toLowerCase();
  const sign = entered.startsWith("-") ? -1 : 1;
  const parts = [...entered.replace(/^[-+]/, "").matchAll(/(\d+(?:\.\d+)?)\s*(h|min|m|s|ms|us|µs)(?![a-zµ])\s*/gy)];
  const length = parts.reduce((sum, [all]) => sum + all.length, 0);
  if (parts.length === 0 || length !== entered.replace(/^[-+]/, "").length) return undefined;
  let us = 0;
  for (const [, number, unit] of parts) {
    const size = UNITS.find(([name]) => name === (unit === "m" ? "min" : unit === "µs" ? "us" : unit))?.[1] ?? Number.NaN;
    us += Number(number) * size;
  }
  if (!Number.isInteger(Math.round(us * 1000) / 1000)) return undefined;
  if (us > LONGEST_US) return undefined;
  const whole = Math.round(us) * sign;
  return `${(whole / 1e6).toFixed(6).replace(/\.?0+$/, "")}s`;
}

export function at(json: JsonObject, path: string): JsonValue | undefined {
  let value: JsonValue | undefined = json;
  for (const name of path.split(".")) {
    if (value === null || typeof value !== "object" || Array.isArray(value)) return undefined;
    value = value[name];
  }
  return value;
}

export function place(json: JsonObject, path: string, value: JsonValue): void {
  const names = path.split(".");
  const last = names.pop() ?? "";
  let into = json;
  for (const name of names) {
    const next = into[name];
    if (typeof next === "object" && next !== null && !Array.isArray(next)) into = next;
    else {
      const made: JsonObject = {};
      into[name] = made;
      into = made;
    }
  }
  const there = into[last];
  if (typeof there === "object" && there !== null && typeof value === "object" && value !== null && Object.keys(value).length === 0) return;
  into[last] = value;
}

// Their version with my changes on top.
export function merged(base: Draft, theirs: Draft, mine: Draft): Draft {
  const result: Record<string, string> = {};
  for (const path of new Set([...Object.keys(theirs), ...Object.keys(mine)])) {
    const kept = mine[path] === base[path] ? theirs[path] : mine[path];
    if (kept !== undefined) result[path] = kept;
  }
  return result;
}

export function isSame(one: Draft, other: Draft): boolean {
  const paths = new Set([...Object.keys(one), ...Object.keys(other)]);
  return [...paths].every((path) => (one[path]?.trim() ?? "") === (other[path]?.trim() ?? ""));
}
