// Gates that block retries on a route: their settings and their current state. Pure.
import { Fate } from "$wire/distribution_pb";
import type { RouteStats } from "$wire/fleet_pb";
import { Mode, RetryBreakerMode } from "$wire/policy_pb";
import type { Policy, RetryBreaker } from "$wire/policy_pb";
import { share, some, whole } from "../../format/numbers";
import { toMs } from "../../format/time";

export interface BreakerLine {
  readonly failures: number;
  readonly successes: number;
  readonly windowS: number;
  // Undefined = only credit decides.
  readonly line: Line | undefined;
}

export interface Line {
  // Failures up to which retries are allowed; approximate for several processes, each with its own window.
  readonly at: number;
  // Failures / at; above 1 = exceeded.
  readonly used: number;
  // The meaning of the line for retries.
  readonly words: string;
}

// Undefined = the rule has no retry breaker, or its settings are not known yet.
export function breakerLine(stats: RouteStats, policy: Policy | undefined): BreakerLine | undefined {
  const breaker = policy?.retryBreaker;
  if (breaker?.ratio === undefined || breaker.enabled === false) return undefined;
  const [failures, successes] = [Number(stats.windowFailures), Number(stats.windowSuccesses)];
  const windowS = ((breaker.buckets ?? 0) * (breaker.bucketLength ? toMs(breaker.bucketLength) : 0)) / 1000;
  return { failures, successes, windowS, line: lineOf(breaker, failures, successes) };
}

function lineOf(breaker: RetryBreaker, failures: number, successes: number): Line | undefined {
  const { ratio = 0, maxRatio = Infinity } = breaker;
  const isFree = breaker.mode === RetryBreakerMode.RATIO && ratio < maxRatio;
  const at = (isFree ? ratio : maxRatio) * successes;
  if (!isFree && breaker.maxRatio === undefined) return undefined;
  const words = isFree && breaker.minFailures ? "retries are free up to" : "no retries above";
  return { at, used: at > 0 ? failures / at : failures > 0 ? Infinity : 0, words };
}

// True if it blocks retries now, or did within the window: credit changes from call to call.
export function breakerHolds(stats: RouteStats): boolean {
  return stats.breakerRefuses > 0 || blockedRecently(stats);
}

function blockedRecently({ fates }: RouteStats): boolean {
  return fates.some(({ fate, perS }) => fate === Fate.RETRY_BREAKER && perS > 0);
}

// The state of the retry breaker; in observe mode, its would-be state.
export function breakerNow(stats: RouteStats, { mode }: RetryBreaker): string {
  const would = stats.mode === Mode.OBSERVE;
  const [holds, some, admits] = mode === RetryBreakerMode.RATIO ? RATIO_WORDS[would ? "would" : "does"] : CREDIT_WORDS[would ? "would" : "does"];
  return atProcesses(stats.breakerRefuses, stats, holds, blockedRecently(stats) ? some : admits);
}

const RATIO_WORDS = {
  does: ["blocks retries", "blocks some retries", "allows retries"],
  would: ["would block retries", "would block some retries", "would allow retries"],
} as const;
const CREDIT_WORDS = {
  does: ["no credit for a retry", "no credit for some retries", "no retry blocked"],
  would: ["would have no credit for a retry", "would have no credit for some retries", "would block no retry"],
} as const;

// "at 2 of 3 processes", or `otherwise` if at none.
export function atProcesses(refusing: number, stats: RouteStats, doing: string, otherwise: string): string {
  if (refusing === 0) return otherwise;
  if (refusing >= stats.clients) return stats.clients === 1 ? doing : `${doing} at all ${stats.clients} processes`;
  return `${doing} at ${refusing} of ${stats.clients} processes`;
}

export function breakerSettings(policy: Policy): string {
  const breaker = policy.retryBreaker;
  if (breaker === undefined || breaker.enabled === false) return "off";
  const parts = breaker.mode === RetryBreakerMode.RATIO ? ratioSettings(breaker) : [creditSettings(breaker)];
  if (breaker.maxRatio !== undefined) parts.push(`no retries above ${share(breaker.maxRatio)} of successes`);
  return parts.join(", ");
}

function creditSettings({ earn = 0 }: RetryBreaker): string {
  const successes = earn > 0 ? Number((1 / earn).toPrecision(3)) : 0;
  return `credit: ${whole(successes)} successful calls pay for one failed retry`;
}

function ratioSettings({ ratio = 0, minFailures = 0, minSamples = 0 }: RetryBreaker): string[] {
  return [
    `free up to ${share(ratio)} of successes`,
    ...(minSamples > 0 ? [`from ${minSamples} attempts`] : []),
    ...(minFailures > 0 ? [`then ${some(minFailures, "saved retry", "saved retries")} per process`] : []),
  ];
}

export function budgetSettings(policy: Policy): string {
  const budget = policy.budget;
  if (budget === undefined) return "none";
  return `${share(budget.ratio ?? 0)} of calls + ${budget.minPerSecond ?? 0}/s`;
}

export function circuitSettings(policy: Policy): string {
  const circuit = policy.circuitBreaker;
  if (circuit === undefined) return "none";
  return `opens after ${circuit.consecutiveFailures ?? 0} consecutive failures, or when ${share(circuit.failureRatio ?? 0)} of at least ${circuit.minCalls ?? 0} calls fail`;
}
