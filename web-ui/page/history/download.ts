// Downloads: the audit log, and all rules, guards and queues at a revision.
//
// The files equal those of the command line (`damper audit export`, `damper export`), so `damper import` and
// `damper apply -f` read them.
import { reflect } from "@bufbuild/protobuf/reflect";
import { ChangeSchema } from "$wire/history_pb";
import type { ChangeFilter, Object$ } from "$wire/history_pb";
import { GuardSchema } from "$wire/guards_pb";
import { QueueSchema } from "$wire/queues_pb";
import { RuleSchema } from "$wire/rules_pb";
import { UNLIMITED } from "../api/client";
import type { Api } from "../api/client";
import { plain, yaml } from "../format/manifest";
import type { Plain } from "../format/manifest";

export interface File {
  readonly name: string;
  readonly type: string;
  readonly parts: readonly string[];
}

// Called with the number of records read.
export type Progress = (count: number) => void;

export async function audit(api: Api, filter: ChangeFilter, signal: AbortSignal, progress: Progress): Promise<File> {
  const parts: string[] = [];
  for await (const change of api.history.exportAudit({ filter }, { ...UNLIMITED, signal })) {
    parts.push(`${JSON.stringify(plain(reflect(ChangeSchema, change)))}\n`);
    progress(parts.length);
  }
  return { name: "damper-audit.jsonl", type: "application/jsonl", parts };
}

const HEADER = "# All rules, guards and queues of a Damper control plane. Restore with `damper import`.\n";

export async function table(api: Api, revision: bigint | undefined, signal: AbortSignal, progress: Progress): Promise<File> {
  const parts = [HEADER];
  let [at, total, count] = [0n, 0n, 0];
  const asked = revision === undefined ? {} : { revision };
  for await (const message of api.history.export(asked, { ...UNLIMITED, signal })) {
    at = message.revision;
    total = message.total;
    for (const object of message.objects) {
      parts.push(manifest(object));
      count += 1;
    }
    progress(count);
  }
  // An incomplete export must fail: its import would delete the rest.
  if (BigInt(count) !== total) throw new Error(`The export is incomplete: ${count} of ${total} objects received.`);
  return { name: `damper-revision-${at}.yaml`, type: "application/yaml", parts };
}

function manifest({ kind }: Object$): string {
  if (kind.case === "rule") return `---\n${yaml({ kind: "Rule", ...fields(plain(reflect(RuleSchema, kind.value))) })}`;
  if (kind.case === "guard") return `---\n${yaml({ kind: "Guard", ...fields(plain(reflect(GuardSchema, kind.value))) })}`;
  if (kind.case === "queue") return `---\n${yaml({ kind: "Queue", ...fields(plain(reflect(QueueSchema, kind.value))) })}`;
  return "";
}

function fields(value: Plain): Record<string, Plain> {
  return typeof value === "object" ? { ...(value as Record<string, Plain>) } : {};
}

// Hands the file to the browser.
export function save({ name, type, parts }: File): void {
  const url = URL.createObjectURL(new Blob([...parts], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  // The browser has read it by then.
  setTimeout(() => { URL.revokeObjectURL(url); }, 10_000);
}
