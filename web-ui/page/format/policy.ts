// Settings of a policy as text. Absent settings are "default": the engine has the values.
import type { Duration } from "@bufbuild/protobuf/wkt";
import { Jitter, Mode, OverMax, RetryBreakerMode } from "$wire/policy_pb";
import type { Backoff, Policy } from "$wire/policy_pb";
import { trim } from "./numbers";
import { signedSpan, span } from "./time";

const MODES: Record<Mode, string> = {
  [Mode.UNSPECIFIED]: "no mode",
  [Mode.OFF]: "off",
  [Mode.OBSERVE]: "observe",
  [Mode.ENFORCE]: "enforce",
};

export function modeName(mode: Mode): string {
  return MODES[mode] ?? `mode ${mode}`;
}

export function attempts(policy: Policy | undefined): string {
  const hedge = policy?.hedge;
  if (policy?.retry !== undefined) {
    return (policy.retry.maxAttempts?.toString() ?? "default") + (hedge ? ", hedged" : "");
  }
  if (hedge === undefined) return "1";
  return hedge.maxHedges === undefined ? "default, hedged" : `${hedge.maxHedges + 1}, hedged`;
}

export function backoff(policy: Policy | undefined): string {
  if (policy?.retry === undefined) return policy?.hedge ? "no retries" : "sent once";
  return policy.retry.backoff === undefined ? "default" : kindOfBackoff(policy.retry.backoff);
}

// A kind of backoff with `max` and jitter.
interface Growing {
  max?: Duration | undefined;
  jitter: Jitter;
  jitterShare?: number | undefined;
  overMax: OverMax;
}

function grown({ max, jitter: kind, jitterShare, overMax }: Growing): string {
  const end = overMax === OverMax.STOP ? ", then the call ends" : "";
  return (max ? ` up to ${span(max)}` : "") + jitter(kind, jitterShare) + end;
}

function kindOfBackoff({ kind }: Backoff): string {
  switch (kind.case) {
    case "none":
      return "no delay";
    case "fixed":
      return `fixed ${span(kind.value.delay)}${jitter(kind.value.jitter, kind.value.jitterShare)}`;
    case "random":
      return `random ${span(kind.value.min)} to ${span(kind.value.max)}${jitter(kind.value.jitter, kind.value.jitterShare)}`;
    case "incrementing":
      return `${span(kind.value.initial)}, by ${signedSpan(kind.value.step)}${grown(kind.value)}`;
    case "fibonacci":
      return `fibonacci ${span(kind.value.unit)}${grown(kind.value)}`;
    case "custom":
      return kind.value.delays.map(span).join(", ") + jitter(kind.value.jitter, kind.value.jitterShare);
    case "sum":
      return kind.value.parts.map(kindOfBackoff).join(" + ");
    case "byCode":
      return `${kind.value.default ? kindOfBackoff(kind.value.default) : "default"}, others for some codes`;
    case "exponential": {
      const { base, multiplier } = kind.value;
      const parts = ["exponential"];
      if (base) parts.push(span(base));
      if (multiplier !== undefined) parts.push(`×${trim(multiplier)}`);
      return parts.join(" ") + grown(kind.value);
    }
    case undefined:
      return "default";
  }
}

function jitter(kind: Jitter, of: number | undefined): string {
  switch (kind) {
    case Jitter.UNSPECIFIED:
      return "";
    case Jitter.NONE:
      return ", no jitter";
    case Jitter.FULL:
      return ", full jitter";
    case Jitter.EQUAL:
      return ", equal jitter";
    case Jitter.PLUS_MINUS:
      return of === undefined ? ", ± jitter" : `, ±${trim(of * 100)} %`;
    case Jitter.DECORRELATED:
      return ", decorrelated";
  }
}

export function breaker(policy: Policy | undefined): string {
  const breaker = policy?.retryBreaker;
  if (breaker?.enabled === false) return "off";
  if (breaker === undefined) return "default";
  const { mode, ratio, earn, maxRatio } = breaker;
  const [by, setting] = mode === RetryBreakerMode.RATIO ? ["ratio", ratio] : ["credit", earn];
  return [by, setting === undefined ? "" : ` ${trim(setting)}`, maxRatio === undefined ? "" : `, never above ${trim(maxRatio)}`].join("");
}
