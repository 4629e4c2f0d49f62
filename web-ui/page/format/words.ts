// Statistics and settings as text. Absent settings are "default": the engine has the values.
import type { Duration, Timestamp } from "@bufbuild/protobuf/wkt";
import { Fate } from "$wire/distribution_pb";
import type { FateRate } from "$wire/fleet_pb";
import type { KillSwitch } from "$wire/kills_pb";
import { Jitter, Mode, OverMax, RetryBreakerMode } from "$wire/policy_pb";
import type { Backoff, Policy } from "$wire/policy_pb";

export const NONE = "–";

// From here on an amplification is marked.
export const HIGH_AMPLIFICATION = 1.5;

export function rate(perS: number): string {
  if (perS >= 99.95) return whole(Math.round(perS));
  return perS.toFixed(perS > 0 && perS < 0.095 ? 2 : 1);
}

// A count of things, wherever one is shown: 10,000. Revisions are names and have no separators.
export function whole(count: number | bigint): string {
  return count.toLocaleString("en");
}

// With what is counted: 1 route, 12,000 routes.
export function some(count: number | bigint, what: string): string {
  return `${whole(count)} ${what}${Number(count) === 1 ? "" : "s"}`;
}

// How many of how many; one figure where it is all.
export function counted(found: number | bigint, all: number | bigint): string {
  return found === all ? whole(all) : `${whole(found)} of ${whole(all)}`;
}

export function times(amplification: number | undefined): string {
  return amplification === undefined || amplification === 0 ? NONE : `×${amplification.toFixed(2)}`;
}

// Calls and attempts are counted when they end, so at the edges of a window there can be a few attempts too many.
const AT_THE_EDGES = 1.05;

// A measured amplification next to its bound.
export function timesWithin(amplification: number | undefined, most: number | bigint | undefined): string {
  const bound = Number(most ?? 0);
  const isTooMany = amplification !== undefined && amplification > bound && amplification <= bound * AT_THE_EDGES;
  return times(isTooMany ? bound : amplification);
}

// So much more than the bound is of a time when another rule was in force.
export function isOver(amplification: number, most: number): boolean {
  return amplification > most * AT_THE_EDGES;
}

export function isHigh(amplification: number | undefined): boolean {
  return amplification !== undefined && amplification > HIGH_AMPLIFICATION;
}

export function share(part: number): string {
  if (part === 0) return "0 %";
  if (part < 0.001) return "<0.1 %";
  return `${(part * 100).toFixed(part < 0.9995 ? 1 : 0)} %`;
}

// Nothing is known of the chain where no caller serves requests.
export function coverage(part: number, routes: readonly { readonly totalServingCalls: bigint }[]): string {
  return routes.some(({ totalServingCalls }) => totalServingCalls > 0n) ? share(part) : "–";
}

export function toMs(duration: Duration): number {
  return Number(duration.seconds) * 1000 + duration.nanos / 1e6;
}

export function span(duration: Duration | undefined): string {
  if (duration === undefined) return NONE;
  const ms = toMs(duration);
  if (ms >= 3_600_000) return `${trim(ms / 3_600_000)} h`;
  if (ms >= 60_000) return `${trim(ms / 60_000)} min`;
  if (ms >= 1000) return `${trim(ms / 1000)} s`;
  if (ms >= 1 || ms === 0) return `${trim(ms)} ms`;
  return `${trim(ms * 1000)} µs`;
}

// A difference, which may be negative.
function signedSpan(duration: Duration | undefined): string {
  if (duration === undefined || toMs(duration) >= 0) return span(duration);
  return `−${span({ ...duration, seconds: -duration.seconds, nanos: -duration.nanos })}`;
}

function trim(value: number): string {
  return Number(value.toPrecision(3)).toString();
}

export function age(ms: number): string {
  const s = Math.floor(ms / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

export function clock(time: Timestamp | undefined): string {
  if (time === undefined) return NONE;
  const date = new Date(Number(time.seconds) * 1000);
  return date.toLocaleTimeString("en-GB", { timeStyle: "long" });
}

// Day, time and zone.
export function when(time: Timestamp | undefined): string {
  if (time === undefined) return NONE;
  return new Date(Number(time.seconds) * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "long" });
}

const MODES: Record<Mode, string> = {
  [Mode.UNSPECIFIED]: "no mode",
  [Mode.OFF]: "off",
  [Mode.OBSERVE]: "observe",
  [Mode.ENFORCE]: "enforce",
};

export function modeName(mode: Mode): string {
  return MODES[mode] ?? `mode ${mode}`;
}

// Those whose names on the wire are no words.
const FATES: Partial<Record<Fate, string>> = {
  [Fate.OK_AFTER_RETRY]: "ok after a retry",
  [Fate.OK_BY_HEDGE]: "ok by a hedge",
  [Fate.RETRY_BREAKER]: "blocked by the retry breaker",
  [Fate.BUDGET]: "budget used up",
  [Fate.CHAIN_RETRY_FLAG]: "already a retry",
  [Fate.CHAIN_NO_MORE_RETRY]: "given up downstream",
  [Fate.NOT_REPLAYABLE]: "request not replayable",
  [Fate.COMMITTED]: "response had begun",
  [Fate.POLICY_OFF]: "not retried by rule",
  [Fate.STOP_WHEN]: "stop condition",
  [Fate.KILLED]: "failed under a kill switch",
  [Fate.RETRY]: "retry",
  [Fate.MAX_DURATION]: "max duration reached",
};

export function fateName(fate: Fate): string {
  return FATES[fate] ?? (Fate[fate] ?? `fate ${fate}`).toLowerCase().replaceAll("_", " ");
}

// The most frequent first. Several would-be fates of observed calls come with "would".
export function topFates(fates: readonly FateRate[], most: number): FateRate[] {
  return fates.filter((fate) => fate.perS > 0).sort((a, b) => b.perS - a.perS).slice(0, most);
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

// A part of a kind with `max` and a random part.
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

// The effect of a kill as text: "retries from orders to stock are stopped".
export function killed({ calls, key }: KillSwitch): string {
  const what = calls ? "all calls" : "retries";
  if (key === undefined) return `${what} are ${calls ? "rejected" : "stopped"}`;
  const any = (name: string) => name === "*";
  const caller = any(key.callerService) ? "" : ` from ${key.callerService}`;
  const cluster = any(key.callerCluster) ? "" : ` (cluster ${key.callerCluster})`;
  const callee = any(key.calleeService) ? "" : ` to ${key.calleeService}`;
  const method = any(key.calleeMethod) ? "" : ` ${key.calleeMethod}`;
  return `${what}${caller + cluster + callee + method || " everywhere"} are ${calls ? "rejected" : "stopped"}`;
}

// The command that ends a kill.
export function undoKill({ key }: KillSwitch): string {
  const parts = [
    ["--caller", key?.callerService],
    ["--cluster", key?.callerCluster],
    ["--callee", key?.calleeService],
    ["--method", key?.calleeMethod],
  ].filter(([, name]) => name !== undefined && name !== "*");
  const flags = parts.map(([flag, name]) => `${flag} '${name?.replaceAll("'", `'\\''`) ?? ""}'`).join(" ");
  return `damper unkill ${flags || "--all"}`;
}
