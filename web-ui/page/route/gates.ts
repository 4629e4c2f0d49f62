// What holds repeats back on a route, with its settings beside what it does now. Pure.
import type { RouteStats } from "$wire/fleet_pb";
import { RetryBreakerMode } from "$wire/policy_pb";
import type { Policy } from "$wire/policy_pb";
import { share, toMs } from "../words";

export interface BreakerLine {
  readonly failures: number;
  readonly successes: number;
  // Retries pass while failures are at most so many; of several processes about so, for each has its own window.
  readonly line: number;
  readonly windowS: number;
  // Of the line; above 1 = refused.
  readonly used: number;
}

// Undefined = the rule has no retry breaker, or its settings are not known yet.
export function breakerLine(stats: RouteStats, policy: Policy | undefined): BreakerLine | undefined {
  const breaker = policy?.retryBreaker;
  if (breaker?.ratio === undefined || breaker.enabled === false) return undefined;
  const [failures, successes] = [Number(stats.windowFailures), Number(stats.windowSuccesses)];
  const line = Math.max(breaker.ratio * successes, (breaker.minFailures ?? 0) * Math.max(stats.clients, 1));
  const windowS = ((breaker.buckets ?? 0) * (breaker.bucketLength ? toMs(breaker.bucketLength) : 0)) / 1000;
  return { failures, successes, line, windowS, used: line > 0 ? failures / line : failures > 0 ? Infinity : 0 };
}

// "at 2 of 3 processes", or what it is where it is nowhere.
export function atProcesses(refusing: number, stats: RouteStats, doing: string, otherwise: string): string {
  if (refusing === 0) return otherwise;
  if (refusing >= stats.clients) return stats.clients === 1 ? doing : `${doing} at all ${stats.clients} processes`;
  return `${doing} at ${refusing} of ${stats.clients} processes`;
}

export function breakerSettings(policy: Policy): string {
  const breaker = policy.retryBreaker;
  if (breaker === undefined || breaker.enabled === false) return "off";
  const parts = [`${share(breaker.ratio ?? 0)} of successes`];
  if (breaker.minFailures) parts.push(`at least ${breaker.minFailures} failures per process`);
  if (breaker.minSamples) parts.push(`from ${breaker.minSamples} attempts on`);
  if (breaker.mode === RetryBreakerMode.ADAPTIVE) parts.push("adaptive: while too few retries help");
  return parts.join(", ");
}

export function budgetSettings(policy: Policy): string {
  const budget = policy.budget;
  if (budget === undefined) return "none";
  return `${share(budget.ratio ?? 0)} of calls + ${budget.minPerSecond ?? 0}/s`;
}

export function circuitSettings(policy: Policy): string {
  const circuit = policy.circuitBreaker;
  if (circuit === undefined) return "none";
  return `opens after ${circuit.consecutiveFailures ?? 0} failures in a row, or ${share(circuit.failureRatio ?? 0)} of ${circuit.minCalls ?? 0} calls and more`;
}
