// The settings of a rule, guard, kill or token one by one, and which of them differ between versions of it.
//
// They are named and written as in a manifest ("policy.retry.max_attempts", "250ms", "UNAVAILABLE"), found by walking
// the message's own description, so that a new field of the wire shows up by itself. What the server sets (revision,
// time, author) is no setting. Compared is what was said: leaving out a default and saying it are two versions.
import type { DescField, DescMessage } from "@bufbuild/protobuf";
import { reflect } from "@bufbuild/protobuf/reflect";
import type { ReflectMessage } from "@bufbuild/protobuf/reflect";
import type { Timestamp } from "@bufbuild/protobuf/wkt";
import { comments } from "$gen/comments";
import { GuardSchema } from "$wire/guards_pb";
import type { Guard } from "$wire/guards_pb";
import { KillSwitchSchema } from "$wire/kills_pb";
import type { KillSwitch } from "$wire/kills_pb";
import { RuleSchema } from "$wire/rules_pb";
import type { Rule } from "$wire/rules_pb";
import { TokenSchema } from "$wire/tokens_pb";
import type { Token } from "$wire/tokens_pb";
import { when } from "./time";
import { isBareList, isLeaf, leaf, scalar } from "./manifest";

export type Settable = Rule | Guard | KillSwitch | Token;

const SCHEMAS: Record<Settable["$typeName"], DescMessage> = {
  "damper.v1.Rule": RuleSchema,
  "damper.v1.Guard": GuardSchema,
  "damper.v1.KillSwitch": KillSwitchSchema,
  "damper.v1.Token": TokenSchema,
};

// The key identifies it; the server sets the rest.
const NO_SETTING = new Set(["key", "id", "revision", "updated_at", "updated_by", "created_at", "created_by", "remaining"]);

export interface Setting {
  readonly path: string;
  readonly value: string;
  // Comment of the .proto file; empty = none.
  readonly about: string;
}

// In the order of the wire.
export function settings(of: Settable): Setting[] {
  const found: Setting[] = [];
  walk(reflect(SCHEMAS[of.$typeName], of), "", found, NO_SETTING);
  return found;
}

// One that this server cannot read has only its key and revision.
export function isReadable(of: Settable): boolean {
  return of.$typeName !== "damper.v1.Rule" && of.$typeName !== "damper.v1.Guard" || settings(of).some(({ path }) => path !== "owner");
}

export interface Differing {
  readonly path: string;
  // One for each version; undefined = not set there.
  readonly values: readonly (string | undefined)[];
  // What that means in each version; empty = the wire does not say, or it is set.
  readonly unset: readonly string[];
  readonly about: string;
}

// Exactly the settings that are not the same in all versions. A version that is undefined does not exist.
export function differing(versions: readonly (Settable | undefined)[]): Differing[] {
  const sides = versions.map((of) => (of === undefined ? [] : settings(of)));
  const maps = sides.map((side) => new Map(side.map((setting) => [setting.path, setting])));
  return placed(sides).flatMap((path) => {
    const values = maps.map((map) => map.get(path)?.value);
    if (values.every((value) => value === values[0])) return [];
    // The presence of a section is no setting if its settings are listed.
    if (isFrame(path, values, maps)) return [];
    const about = maps.find((map) => map.has(path))?.get(path)?.about ?? "";
    const unset = maps.map((map) => (!map.has(path) && isWithin(path, map) ? unsetMeans(about) : ""));
    return [{ path, values, unset, about }];
  });
}

// What an absent value means, in the words of the wire: from "1 to 10, default 3." comes "default 3".
export function unsetMeans(about: string): string {
  const [, fallback, absent] = /(?:\bdefault (.+?)|\babsent = (.+?))(?=[,;:]|\.(?:\s|$)|$)/i.exec(about) ?? [];
  if (fallback !== undefined) return `default ${fallback}`;
  return absent ?? "";
}

const THERE = "{}";

function isFrame(path: string, values: readonly (string | undefined)[], maps: readonly Map<string, Setting>[]): boolean {
  return maps.some((map, at) => values[at] === undefined && [...map.keys()].some((other) => other.startsWith(`${path}.`)));
}

// The default holds only where that is what it is a part of.
function isWithin(path: string, map: ReadonlyMap<string, Setting>): boolean {
  const parent = path.slice(0, path.lastIndexOf("."));
  return [...map.keys()].some((other) => other === parent || other.startsWith(`${parent}.`));
}

// All paths, each at the place that the wire gives it.
function placed(sides: readonly (readonly Setting[])[]): string[] {
  const order: string[] = [];
  for (const side of sides) {
    let after = -1;
    for (const { path } of side) {
      const at = order.indexOf(path);
      if (at >= 0) after = Math.max(after, at);
      else order.splice((after += 1), 0, path);
    }
  }
  return order;
}

function walk(message: ReflectMessage, before: string, found: Setting[], without?: ReadonlySet<string>): void {
  for (const field of message.sortedFields) {
    if (!message.isSet(field) || without?.has(field.name)) continue;
    const path = pathOf(message.desc, field, before);
    const about = comments[`${message.desc.typeName}.${field.name}`] ?? "";
    switch (field.fieldKind) {
      case "message":
        nested(message.get(field), path, about, found);
        break;
      case "list": {
        const items = [...message.get(field)];
        if (field.message !== undefined && !isLeaf(field.message)) {
          items.forEach((item, at) => { nested(item as ReflectMessage, `${path}[${at}]`, about, found); });
        } else {
          const words = items.map((item) => (field.message === undefined ? scalar(field, item) : leaf(item as ReflectMessage)));
          found.push({ path, about, value: `[${words.join(", ")}]` });
        }
        break;
      }
      default:
        found.push({ path, about, value: String(scalar(field, message.get(field))) });
    }
  }
}

function nested(value: ReflectMessage, path: string, about: string, found: Setting[]): void {
  const { desc } = value;
  if (isLeaf(desc)) {
    // A time is read here, not copied into a manifest.
    const isTime = desc.typeName === "google.protobuf.Timestamp";
    found.push({ path, about, value: isTime ? when(value.message as Timestamp) : leaf(value) });
    return;
  }
  const size = found.length;
  walk(value, path, found);
  if (found.length === size) found.push({ path, about, value: isBareList(desc) ? "[]" : THERE });
}

// A list of codes is written as the list that it is.
function pathOf(desc: DescMessage, field: DescField, before: string): string {
  if (isBareList(desc)) return before;
  return before === "" ? field.name : `${before}.${field.name}`;
}
