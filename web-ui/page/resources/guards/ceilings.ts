// Ceilings as text.
import { comments } from "$gen/comments";
import type { Codes } from "$wire/policy_pb";
import { Code, Mode } from "$wire/policy_pb";
import { HedgeCeiling } from "$wire/guards_pb";
import type { Ceiling } from "$wire/guards_pb";
import { unsetMeans } from "../../format/settings";
import { modeName } from "../../format/policy";
import { NONE } from "../../format/numbers";

export function codes(list: Codes | undefined): string {
  if (list?.kind.case === undefined) return NONE;
  const names = list.kind.value.codes.map((code) => Code[code] ?? String(code)).join(", ");
  if (list.kind.case === "deny") return names === "" ? NONE : `not ${names}`;
  return names === "" ? "none" : names;
}

export function forbidsHedges(ceiling: Ceiling | undefined): boolean {
  return ceiling?.hedge === HedgeCeiling.FORBID;
}

export function repeats(ceiling: Ceiling | undefined): string {
  const limit = ceiling?.repeatLimit;
  if (limit === undefined) return NONE;
  const mode = modeName(limit.mode === Mode.UNSPECIFIED ? Mode.OBSERVE : limit.mode);
  const ratio = limit.ratio ?? unsetMeans(comments["damper.v1.RepeatLimit.ratio"] ?? "");
  return `${ratio} per first attempt, ${mode}`;
}
