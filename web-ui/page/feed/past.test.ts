import { expect, test } from "vitest";
import { Past, PAST_S, sampleOf } from "./past";
import { keyText } from "./state";
import { route } from "../testing";

const fleet = (...routes: ReturnType<typeof route>[]) => new Map(routes.map((each) => [keyText(each.key), each]));
const key = (caller: string) => keyText(route(caller).key);

test("a route's last minutes are kept, and what is older goes", () => {
  const past = new Past();
  for (let at = 0; at <= PAST_S + 10; at += 1) past.take(fleet(route("orders", { attemptsPerS: at })), at);
  const samples = past.of(key("orders"));
  expect(samples).toHaveLength(PAST_S);
  expect(samples.at(-1)?.attemptsPerS).toBe(PAST_S + 10);
  expect(samples[0]?.at).toBe(11);
});

test("a route that is gone is forgotten with its time", () => {
  const past = new Past();
  past.take(fleet(route("orders")), 1);
  past.take(fleet(), 100);
  expect(past.of(key("orders"))).toHaveLength(1);
  past.take(fleet(), 1 + PAST_S);
  expect(past.of(key("orders"))).toHaveLength(0);
});

test("of a large fleet only routes that repeat or fail are kept, and never more than so many", () => {
  const past = new Past();
  const quiet = Array.from({ length: 3_000 }, (_, at) => route(`quiet-${at}`));
  const failing = Array.from({ length: 900 }, (_, at) => route(`failing-${at}`, { errorShare: 0.1 }));
  past.take(fleet(...quiet, ...failing), 1);
  expect(past.of(key("quiet-7"))).toHaveLength(0);
  expect(past.of(key("failing-7"))).toHaveLength(1);
  expect(past.of(key("failing-899"))).toHaveLength(0);
});

test("a clock that goes back makes no line that goes back", () => {
  const past = new Past();
  for (const at of [1, 2, 3, 2]) past.take(fleet(route("orders")), at);
  expect(past.of(key("orders")).map(({ at }) => at)).toEqual([1, 2]);
});

test("without calls there is no share of failures", () => {
  expect(sampleOf(route("orders", { callsPerS: 0, errorShare: 0 }), 1).errorShare).toBeUndefined();
  expect(sampleOf(undefined, 1)).toMatchObject({ callsPerS: 0, p99Ms: undefined });
});
