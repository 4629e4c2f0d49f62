// Messages in the format of manifests, as the command line writes them: snake_case, short names, durations
// with units.
//
// Uses the message's descriptor, so a new field of the wire needs no change here.
import { ScalarType } from "@bufbuild/protobuf";
import type { DescField, DescMessage } from "@bufbuild/protobuf";
import type { ReflectMessage } from "@bufbuild/protobuf/reflect";
import type { Duration, Timestamp } from "@bufbuild/protobuf/wkt";

export type Plain = string | number | boolean | readonly Plain[] | { readonly [name: string]: Plain };

export function plain(message: ReflectMessage): Plain {
  if (isLeaf(message.desc)) return leaf(message);
  const result: Record<string, Plain> = {};
  for (const field of message.sortedFields) {
    if (!message.isSet(field)) continue;
    if (field.fieldKind === "message") result[field.name] = plain(message.get(field));
    else if (field.fieldKind === "list") result[field.name] = [...message.get(field)].map((item) => listed(field, item));
    else result[field.name] = scalar(field, message.get(field));
  }
  // A list of codes is written as a bare list.
  return isBareList(message.desc) ? (result["codes"] ?? []) : result;
}

function listed(field: DescField, item: unknown): Plain {
  return field.message === undefined ? scalar(field, item) : plain(item as ReflectMessage);
}

export function isBareList({ typeName }: DescMessage): boolean {
  return typeName === "damper.v1.CodeList";
}

// Times and durations are scalars.
export function isLeaf({ typeName }: DescMessage): boolean {
  return typeName === "google.protobuf.Duration" || typeName === "google.protobuf.Timestamp";
}

export function leaf({ desc, message }: ReflectMessage): string {
  return desc.typeName === "google.protobuf.Duration" ? exact(message as Duration) : rfc3339(message as Timestamp);
}

export function scalar(field: DescField, value: unknown): string | number | boolean {
  if (field.enum !== undefined) {
    const name = field.enum.value[value as number]?.localName ?? String(value);
    return field.enum.typeName === "damper.v1.Code" ? name : name.toLowerCase();
  }
  if (typeof value === "bigint") return value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : String(value);
  return field.scalar === ScalarType.BOOL ? value === true : (value as string | number);
}

// Exact, not rounded.
export function exact({ seconds, nanos }: Duration): string {
  const us = seconds * 1_000_000n + BigInt(Math.trunc(nanos / 1000));
  if (us === 0n) return "0ms";
  for (const [unit, length] of [["h", 3_600_000_000n], ["s", 1_000_000n], ["ms", 1000n]] as const) {
    if (us % length === 0n) return `${us / length}${unit}`;
  }
  return `${us}us`;
}

function rfc3339({ seconds, nanos }: Timestamp): string {
  const whole = new Date(Number(seconds) * 1000).toISOString().slice(0, 19);
  return nanos === 0 ? `${whole}Z` : `${whole}.${String(nanos).padStart(9, "0")}Z`;
}

// One YAML document, without its "---".
export function yaml(value: Plain, indent = ""): string {
  if (typeof value !== "object") return `${indent}${word(value)}\n`;
  if (Array.isArray(value)) {
    return (value as readonly Plain[]).map((item) => `${indent}- ${yaml(item, `${indent}  `).trimStart()}`).join("");
  }
  return Object.entries(value)
    .map(([name, inner]) => {
      if (typeof inner !== "object") return `${indent}${name}: ${word(inner)}\n`;
      const empty = Array.isArray(inner) ? "[]" : "{}";
      if (Object.keys(inner).length === 0) return `${indent}${name}: ${empty}\n`;
      return `${indent}${name}:\n${yaml(inner, Array.isArray(inner) ? indent : `${indent}  `)}`;
    })
    .join("");
}

// Quoted unless it is unambiguously a string.
function word(value: string | number | boolean): string {
  if (typeof value !== "string") return String(value);
  const isPlain = /^(?:[A-Za-z0-9]|-(?=[A-Za-z]))[\w./ *-]*$/.test(value) && !/^(true|false|null|yes|no|on|off|y|n|[\d._+-]+(e[\d+-]+)?|0[xo].*)$/i.test(value) && value === value.trim();
  return isPlain ? value : JSON.stringify(value);
}
