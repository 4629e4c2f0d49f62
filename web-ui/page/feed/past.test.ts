import { create } from "@bufbuild/protobuf";
import { PastSchema } from "$wire/fleet_pb";
import type { Past } from "$wire/fleet_pb";
import { expect, test } from "vitest";
import { Recent, PAST_S, sampleOf, withSpan } from "./past";
import type { Sample } from "./past";
import { route } from "../testing/messages";

const span = (until: number, fields: object = {}): Past =>
  create(PastSchema, { until: { seconds: BigInt(until) }, span: { seconds: 10n }, callsPerS: 10, attemptsPerS: 20, failedPerS: 1, ...fields });
const received = (at: number) => sampleOf(route("orders"), at);
const times = (samples: readonly Sample[]) => samples.map(({ at, callsPerS }) => (callsPerS === undefined ? "gap" : at));

test("the last quarter of an hour is kept, and what is older goes", () => {
  const recent = new Recent();
  let samples: readonly Sample[] = [];
  for (let at = 0; at <= PAST_S + 10; at += 1) samples = recent.add(received(at), 0);
  expect(samples).toHaveLength(PAST_S);
  expect(samples[0]?.at).toBe(11);
});

test("a clock that goes back makes no line that goes back", () => {
  const recent = new Recent();
  for (const at of [1, 2, 3]) recent.add(received(at), 0);
  expect(times(recent.add(received(2), 0))).toEqual([1, 2]);
});

test("the server's spans precede own samples, by the local clock", () => {
  const recent = new Recent();
  recent.setPast([span(1_000), span(1_010, { callsPerS: 4, failedPerS: 1 })]);
  const samples = recent.add(received(990), 30);
  expect(times(samples)).toEqual([970, 980, 990]);
  expect(samples[1]).toMatchObject({ callsPerS: 4, attemptsPerS: 20, errorShare: 0.25 });
});

test("where both know a time, it is drawn once", () => {
  const recent = new Recent();
  recent.setPast([span(100), span(110), span(120), span(130)]);
  for (const at of [108, 109, 121]) recent.add(received(at), 0);
  expect(times(recent.add(received(122), 0))).toEqual([100, 108, 109, 120, 121, 122]);
});

test("while the stream was away the server's spans take its place", () => {
  const recent = new Recent();
  recent.add(received(100), 0);
  recent.setPast([span(90), span(100), span(110), span(120), span(130)]);
  expect(times(recent.add(received(141), 0))).toEqual([90, 100, 110, 120, 130, 141]);
});

test("the line breaks where samples are missing", () => {
  const recent = new Recent();
  recent.setPast([span(100), span(130), span(140)]);
  expect(times(recent.add(received(150), 0))).toEqual([100, "gap", 130, 140, 150]);
  expect(times(recent.add(received(200), 0))).toEqual([100, "gap", 130, 140, 150, "gap", 200]);
});

test("without calls there is no share of failures", () => {
  expect(sampleOf(route("orders", { callsPerS: 0, errorShare: 0 }), 1).errorShare).toBeUndefined();
  expect(sampleOf(undefined, 1)).toMatchObject({ callsPerS: 0, p99Ms: undefined });
});

test("spans of all routes continue the server's", () => {
  const routes = [route("orders", { errorShare: 0.1 }), route("shop", { attemptsPerS: 30 })];
  const past = [span(100)];
  expect(withSpan(past, routes, { $typeName: "google.protobuf.Timestamp", seconds: 105n, nanos: 0 })).toBe(past);
  const [, next] = withSpan(past, routes, { $typeName: "google.protobuf.Timestamp", seconds: 110n, nanos: 0 });
  expect(next).toMatchObject({ callsPerS: 20, attemptsPerS: 40, failedPerS: 1 });
});
