// What a tab notices of itself: when something was first to be seen, and how long its main thread was kept.
import type { Page } from "@playwright/test";

interface Seen {
  // Since the navigation, at the frame that showed it.
  rowsMs: number | undefined;
  allMs: number | undefined;
  tasksMs: number[];
}

declare global {
  interface Window {
    seen: Seen;
  }
}

// Before anything of the page runs.
export async function observe(page: Page, rules: number): Promise<void> {
  await page.addInitScript((all) => {
    const seen: Seen = { rowsMs: undefined, allMs: undefined, tasksMs: [] };
    window.seen = seen;
    new PerformanceObserver((list) => {
      for (const { duration } of list.getEntries()) seen.tasksMs.push(duration);
    }).observe({ type: "longtask", buffered: true });
    const look = () => {
      // With marks between the thousands.
      const count = document.querySelector("section[aria-label=Rules] .count")?.textContent.replace(/\D/g, "") ?? "";
      if (seen.rowsMs === undefined && document.querySelector("table.rules tbody tr")) seen.rowsMs = performance.now();
      if (seen.allMs === undefined && Number(count) >= all) seen.allMs = performance.now();
      if (seen.allMs === undefined) requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  }, rules);
}

// Milliseconds from the event that `act` brings about to the frame that shows its answer.
export async function answered(page: Page, event: string, answer: string, act: () => Promise<void>): Promise<number> {
  const waiting = await page.evaluateHandle(
    ({ event, answer }) => {
      const promise = new Promise<number>((resolve) => {
        const begin = ({ timeStamp }: Event) => {
          const look = () => {
            if (document.querySelector(answer) === null) requestAnimationFrame(look);
            // A task behind the frame: by then it is painted.
            else setTimeout(() => { resolve(performance.now() - timeStamp); });
          };
          requestAnimationFrame(look);
        };
        addEventListener(event, begin, { once: true, capture: true });
      });
      return { promise };
    },
    { event, answer },
  );
  await act();
  return waiting.evaluate(({ promise }) => promise);
}

// Main-thread tasks over 50 ms since the last call.
export function longTasks(page: Page): Promise<number[]> {
  return page.evaluate(() => window.seen.tasksMs.splice(0));
}
