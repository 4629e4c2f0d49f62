// The settings of a rule, guard, kill, token or action on jobs as a list, and differences of versions.
//
// Paths and values are those of a manifest ("policy.retry.max_attempts", "250ms", "UNAVAILABLE"). They are
// found through the message's descriptor, so a new field of the wire needs no change here. Values set by the
// server (revision, time, author) are no settings. A default that is written out differs from one that is
// left out.
import type { DescField, DescMessage } from "@bufbuild/protobuf";
import { reflect } from "@bufbuild/protobuf/reflect";
import type { ReflectMessage } from "@bufbuild/protobuf/reflect";
import type { Timestamp } from "@bufbuild/protobuf/wkt";
import { comments } from "$gen/comments";
import { GuardSchema } from "$wire/guards_pb";
import type { Guard } from "$wire/guards_pb";
import { KillSwitchSchema } from "$wire/kills_pb";
import type { KillSwitch } from "$wire/kills_pb";
import { JobActionSchema, QueueSchema } from "$wire/queues_pb";
import type { JobAction, Queue } from "$wire/queues_pb";
import { RuleSchema } from "$wire/rules_pb";
import type { Rule } from "$wire/rules_pb";
import { TokenSchema } from "$wire/tokens_pb";
import type { Token } from "$wire/tokens_pb";
import { when } from "./time";
import { isBareList, isLeaf, leaf, scalar } from "./manifest";

export type Settable = Rule | Guard | KillSwitch | Queue | Token | JobAction;

const SCHEMAS: Record<Settable["$typeName"], DescMessage> = {
  "damper.v1.Rule": RuleSchema,
  "damper.v1.Guard": GuardSchema,
  "damper.v1.KillSwitch": KillSwitchSchema,
  "damper.v1.Queue": QueueSchema,
  "damper.v1.Token": TokenSchema,
  "damper.v1.JobAction": JobActionSchema,
};

// The key identifies it; the server sets the rest.
const NO_SETTING = new Set(["key", "id", "revision", "updated_at", "updated_by", "created_at", "created_by", "remaining"]);

export interface Setting {
  readonly path: string;
  readonly value: string;
  // Comment of the .proto file; empty = none.
  readonly about: string;
}

// In the order of the fields on the wire.
export function settings(of: Settable): Setting[] {
  const found: Setting[] = [];
  walk(reflect(SCHEMAS[of.$typeName], of), "", found, NO_SETTING);
  return found;
}

// A rule or guard that this server cannot read has only its key and revision.
export function isReadable(of: Settable): boolean {
  return of.$typeName !== "damper.v1.Rule" && of.$typeName !== "damper.v1.Guard" || settings(of).some(({ path }) => path !== "owner");
}

export interface Differing {
  readonly path: string;
  // One per version; undefined = not set.
  readonly values: readonly (string | undefined)[];
  // The meaning of "not set" in each version; empty = unknown, or it is set.
  readonly unset: readonly string[];
  readonly about: string;
}

// The settings that differ between versions. An undefined version does not exist.
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

// The meaning of an absent value from the comment: "1 to 10, default 3." gives "default 3".
export function unsetMeans(about: string): string {
  const [, fallback, absent] = /(?:\bdefault (.+?)|\babsent = (.+?))(?=[,;:]|\.(?:\s|$)|$)/i.exec(about) ?? [];
  if (fallback !== undefined) return `default ${fallback}`;
  return absent ?? "";
}

const THERE = "{}";

function isFrame(path: string, values: readonly (string | undefined)[], maps: readonly Map<string, Setting>[]): boolean {
  return maps.some((map, at) => values[at] === undefined && [...map.keys()].some((other) => other.startsWith(`${path}.`)));
}

// The default applies only within a parent that exists.
function isWithin(path: string, map: ReadonlyMap<string, Setting>): boolean {
  const parent = path.slice(0, path.lastIndexOf("."));
  return [...map.keys()].some((other) => other === parent || other.startsWith(`${parent}.`));
}

// All paths in the order of the wire.
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
    // Times are shown in local format, because manifests do not contain them.
    const isTime = desc.typeName === "google.protobuf.Timestamp";
    found.push({ path, about, value: isTime ? when(value.message as Timestamp) : leaf(value) });
    return;
  }
  const size = found.length;
  walk(value, path, found);
  if (found.length === size) found.push({ path, about, value: isBareList(desc) ? "[]" : THERE });
}

// A list of codes is written as a bare list.
function pathOf(desc: DescMessage, field: DescField, before: string): string {
  if (isBareList(desc)) return before;
  return before === "" ? field.name : `${before}.${field.name}`;
}
