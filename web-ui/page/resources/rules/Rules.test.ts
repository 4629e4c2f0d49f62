// The list of rules where there are many: which of its rows a change touches.
import { cleanup, waitFor } from "@testing-library/svelte";
import { tick } from "svelte";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { shownAt } from "../../testing/app";
import { messageEvent, rule } from "../../testing/messages";

// A canvas is not there; the browser test sees the chart.
vi.mock("uplot", () => ({ default: class { setData() {} setSize() {} destroy() {} } }));

beforeEach(() => { vi.spyOn(console, "error"); });
afterEach(() => {
  cleanup();
  expect(console.error).not.toHaveBeenCalled();
});

const many = (count: number) => Array.from({ length: count }, (_, at) => rule(`service-${String(at).padStart(5, "0")}`, 7n));
const rows = () => [...document.querySelectorAll<HTMLElement>("table.rules tbody tr")];

// The rows in which anything changes by what is done.
async function touched(act: () => void): Promise<(string | undefined)[]> {
  const seen = new Set<HTMLElement | null>();
  const table = document.querySelector("table.rules");
  if (table === null) throw new Error("there is no table");
  const note = (changes: MutationRecord[]) => {
    for (const { target } of changes) seen.add((target instanceof Element ? target : target.parentElement)?.closest("tr") ?? null);
  };
  const observer = new MutationObserver(note);
  observer.observe(table, { subtree: true, childList: true, characterData: true, attributes: true });
  act();
  await tick();
  note(observer.takeRecords());
  observer.disconnect();
  return [...seen].map((row) => row?.dataset["rule"]);
}

test("one changed rule touches its own row and no other", async () => {
  const { send } = shownAt("/rules", () => {}, { rules: many(300) });
  await waitFor(() => { expect(rows()).not.toHaveLength(0); });
  expect(await touched(() => { send(messageEvent({ rules: [rule("service-00007", 8n, { applied: 1 })] })); })).toEqual(["service-00007 * stock *"]);
  expect(rows()[7]?.textContent).toContain("1 of 4");
});

test("what is not about rules touches no row", async () => {
  const { send } = shownAt("/rules", () => {}, { rules: many(300) });
  await waitFor(() => { expect(rows()).not.toHaveLength(0); });
  expect(await touched(() => { send(messageEvent({ revision: 21n, connectedClients: 5 })); })).toEqual([]);
});
