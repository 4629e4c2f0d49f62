// The settings of a queue as a form, and the form as a queue.
//
// Ranges and defaults come from the .proto file, and the server validates. The settings of `policy` have
// other ranges and defaults than those of a rule, so their help is written here; a test compares it with the
// table in docs/policy.md, which is made from the engine's constants. Paths are those of the message.
import { create, toJson } from "@bufbuild/protobuf";
import type { JsonObject } from "@bufbuild/protobuf";
import { Mode } from "$wire/policy_pb";
import { OnStop, QueueSchema } from "$wire/queues_pb";
import type { Queue } from "$wire/queues_pb";
import type { Parsed } from "../../resources/draft_editing.svelte";
import { draftIn, jsonOf, sendable } from "../../resources/rules/draft";
import type { Draft } from "../../resources/rules/draft";
import { backoff, choices, field, help, meaningOfEmpty, stopWhen } from "../../resources/rules/form";
import type { Field, Kind, Section } from "../../resources/rules/form";

const of = (path: string, label: string, kind: Kind, about?: string): Field => {
  const made = field("Queue", path, label, kind);
  return about === undefined ? made : { ...made, help: about };
};
const ofRetry = (name: string, label: string, kind: Kind, about: string): Field => ({ ...field("Retry", `policy.retry.${name}`, label, kind), help: about });

const STOP = "policy.stop_when";
const stops = (draft: Draft) => draft[STOP] !== undefined;

export const SECTIONS: readonly Section[] = [
  {
    path: "",
    title: "Queue",
    help: "",
    fields: [
      {
        ...field("Policy", "policy.mode", "Mode", "choice", choices(Mode, "MODE_", "choose one")),
        help: "off: submissions are rejected, and jobs wait. observe: submissions are checked, then rejected; jobs are delivered. enforce: submissions are accepted.",
      },
      of("workers", "Workers", "list"),
      of("submitters", "Submitters", "list"),
      of("methods", "Methods", "list"),
      of("owner", "Owner", "text", `${help("Queue.owner")} This owner's manifests may change or delete the queue.`),
    ],
  },
  {
    path: "",
    title: "Attempts",
    help: "",
    fields: [
      ofRetry("max_attempts", "Max attempts", "number", "Deliveries that were not released. 1 to 1000, default 25."),
      ofRetry("per_attempt_timeout", "Limit of an attempt", "duration", "One delivery. 1 ms to 24 h, default 30 s."),
      ofRetry("max_duration", "No attempts after", "duration", "Time from the submission, after which no delivery begins. 1 s to 30 days; empty: no limit."),
      of("expires_after", "Expires after", "duration"),
      ofRetry("codes", "Codes to retry", "codes", "Failures after which a job is delivered again. Empty: those that count as failures of a callee."),
    ],
    variants: backoff("policy.retry.backoff", "The wait before each further delivery. Empty: exponential 1 s x 2 up to 1 h with equal jitter."),
  },
  {
    path: "",
    title: "Deliveries",
    help: "",
    fields: [
      of("max_in_flight", "Max in flight", "number"),
      of("rate", "Rate", "number"),
      of("hold_after", "Hold after", "number"),
      of("lease", "Lease", "duration"),
      of("max_lost", "Max lost", "number"),
      { ...field("Queue", "on_stop", "On a stop condition", "choice", choices(OnStop, "ON_STOP_", "default: hold")), counts: stops },
    ],
  },
  {
    path: STOP,
    title: "Stop delivering when",
    help: "Off: deliveries depend neither on latency nor on the success rate.",
    fields: stopWhen(STOP, "The delivery"),
  },
  {
    path: "",
    title: "Storage",
    help: "",
    fields: [
      of("keep_done", "Keep ended jobs", "duration"),
      of("keep_dead", "Keep dead jobs", "duration"),
      of("max_jobs", "Max jobs", "number"),
      of("max_bytes", "Max size", "bytes"),
      of("max_body_bytes", "Max size of a body", "bytes", "Body of one job. 1 KiB to 768 KiB, default 256 KiB."),
      of("max_submitter_share", "Max share of a service", "number"),
      of("metadata", "Kept metadata", "list"),
    ],
  },
];

// A new queue accepts jobs.
const NEW: Draft = { "policy.mode": `MODE_${Mode[Mode.ENFORCE]}` };

export function draftOf(queue: Queue | undefined): Draft {
  return queue === undefined ? NEW : draftIn(json(queue), SECTIONS);
}

// `base` has the settings that the form does not know: composed backoffs, and the reason of a pause.
export function queueOf(draft: Draft, name: string, base: Queue | undefined): Parsed<Queue> {
  const { json: read, faults } = jsonOf(draft, json(base ?? create(QueueSchema)), SECTIONS);
  const queue = faults.size === 0 ? sendable(QueueSchema, read, faults) : undefined;
  return { written: queue && { ...queue, name, paused: base?.paused ?? "" }, faults };
}

function json(queue: Queue): JsonObject {
  return toJson(QueueSchema, queue, { useProtoFieldName: true }) as JsonObject;
}

export interface Row {
  readonly path: string;
  readonly label: string;
  readonly value: string;
  // Not set: the value is the default.
  readonly isDefault: boolean;
}

// All settings of a queue with their values, in the order of the form.
export function rowsOf(queue: Queue): Row[] {
  const draft = draftOf(queue);
  return SECTIONS.flatMap((section) => {
    if (section.path !== "" && draft[section.path] === undefined) return [{ path: section.path, label: section.title, value: "off", isDefault: true }];
    const { variants } = section;
    const chosen = variants?.of.find(({ name }) => name === draft[variants.path]);
    const fields = section.fields.filter(({ counts }) => counts?.(draft) !== false).map((one) => row(one, draft[one.path]));
    if (variants === undefined) return fields;
    const kind = draft[variants.path];
    const value = chosen?.label ?? (kind === undefined ? meaningOfEmpty({ help: variants.help }) : "custom, set in a manifest");
    const details = chosen?.fields.filter(({ path }) => draft[path] !== undefined).map((one) => row(one, draft[one.path])) ?? [];
    return [...fields, { path: variants.path, label: variants.label, value, isDefault: kind === undefined }, ...details];
  });
}

function row(one: Field, value: string | undefined): Row {
  const text = one.choices?.find((choice) => choice.value === value)?.label ?? value;
  return { path: one.path, label: one.label, value: text ?? (meaningOfEmpty(one) || "none").replace(/^default /, ""), isDefault: value === undefined };
}
