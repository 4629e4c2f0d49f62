import { expect, test } from "vitest";
import { kill, route } from "../testing/messages";
import { trouble } from "./title";

const calm = { routes: new Map([["gateway", route("gateway")]]), kills: [] };
const storming = { ...calm, routes: new Map([["gateway", route("gateway", { callsPerS: 10, attemptsPerS: 27, amplification: 2.7 })]]) };
const stopped = { ...storming, kills: [kill("stock")] };

test("the tab's title has no sign while nothing is wrong", () => {
  expect(trouble(undefined, false)).toBe("");
  expect(trouble(calm, false)).toBe("");
});

test("it shows a storm, before it a kill, before both a lost connection", () => {
  expect(trouble(storming, false)).toBe("▲ ");
  expect(trouble(stopped, false)).toBe("■ ");
  expect(trouble(stopped, true)).toBe("○ ");
});
