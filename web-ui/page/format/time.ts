// Durations and times as text.
import type { Duration, Timestamp } from "@bufbuild/protobuf/wkt";
import { NONE, trim } from "./numbers";

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
export function signedSpan(duration: Duration | undefined): string {
  if (duration === undefined || toMs(duration) >= 0) return span(duration);
  return `−${span({ ...duration, seconds: -duration.seconds, nanos: -duration.nanos })}`;
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
