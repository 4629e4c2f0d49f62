// Takes the pictures. Each page: full, and with many services if that differs, at both widths in both
// schemes; empty, loading and failing once wide and light, once narrow and dark.
//
// DAMPER_SCREENSHOTS_TO names the folder; the files are <page>-<state>-<width>-<scheme>.png.
import { expect, test } from "@playwright/test";
import type { Page } from "@playwright/test";
import { join } from "node:path";
import { BlockingProxy } from "./proxy";
import { SHOWN } from "./pages";
import type { Shown } from "./pages";
import { urlOf } from "./servers";
import type { Kind } from "./servers";

type State = "empty" | "loading" | "failing" | "full" | "many";

const WIDE = { width: 1440, height: 900, most: 1500 };
const NARROW = { width: 390, height: 900, most: 1800 };
const ALL = [WIDE, NARROW].flatMap((size) => (["light", "dark"] as const).map((scheme) => ({ size, scheme })));
const TWO = ALL.filter(({ size, scheme }) => (size === WIDE) === (scheme === "light"));
const STATES: readonly { state: State; variants: typeof ALL }[] = [
  { state: "full", variants: ALL }, { state: "many", variants: ALL }, { state: "failing", variants: TWO },
  { state: "empty", variants: TWO }, { state: "loading", variants: TWO },
];

const folder = process.env["DAMPER_SCREENSHOTS_TO"];
if (!folder) throw new Error("set DAMPER_SCREENSHOTS_TO to the folder for the pictures");
const to = folder;

for (const shown of SHOWN) {
  for (const { state, variants } of STATES) {
    if (!has(shown, state)) continue;
    for (const { size, scheme } of variants) {
      const name = `${shown.name}-${state}-${String(size.width)}-${scheme}`;
      test(name, async ({ browser }) => {
        const context = await browser.newContext({ viewport: size, colorScheme: scheme });
        const proxy = await BlockingProxy.to(urlOf(serverOf(shown, state)));
        try {
          const page = await context.newPage();
          await bring(page, proxy, shown, state);
          await page.evaluate(() => document.fonts.ready);
          await page.mouse.move(0, 0);
          const height = Math.min(await page.evaluate(() => document.documentElement.scrollHeight), size.most);
          await page.setViewportSize({ width: size.width, height: Math.max(height, size.height) });
          await page.screenshot({ path: join(to, `${name}.png`), animations: "disabled", caret: "hide" });
        } finally {
          await context.close();
          await proxy.shut();
        }
      });
    }
  }
}

function has(shown: Shown, state: State): boolean {
  if (shown.onlyFull) return state === "full";
  return state === "many" ? shown.many !== undefined : true;
}

function serverOf(shown: Shown, state: State): Kind {
  if (shown.full === "guarded") return "guarded";
  if (state === "empty") return "empty";
  return state === "many" ? (shown.many?.server ?? shown.full) : shown.full;
}

// The page at its address, in its state.
async function bring(page: Page, proxy: BlockingProxy, shown: Shown, state: State): Promise<void> {
  if (state === "loading") proxy.held = shown.asks ?? /Fleet\/Watch/;
  const path = state === "many" ? (shown.many?.path ?? shown.path) : shown.path;
  await page.goto(proxy.url + path);
  if (state === "loading") {
    await expect(page.locator(".loading").first()).toBeVisible();
    return;
  }
  if (shown.full === "guarded") {
    await expect(page.getByLabel("Token")).toBeVisible();
    if (state === "failing") await refused(page);
    return;
  }
  await expect(page.getByTestId("liveness")).toContainText("live");
  await expect(page.locator(".loading, [aria-busy=true]")).toHaveCount(0);
  if (state !== "empty") await shown.act?.(page);
  // A second message of the stream, so that charts and rates show data.
  const before = await page.evaluate(() => performance.now());
  await expect.poll(() => page.evaluate(() => performance.now())).toBeGreaterThan(before + 2_500);
  if (state !== "failing") return;
  await proxy.shut();
  await expect(page.getByRole("status").getByText("Disconnected.")).toBeVisible();
  await expect(page.locator(".age")).toHaveText(/^[3-9] s$/);
}

async function refused(page: Page): Promise<void> {
  await page.getByLabel("Token").fill("damper_unknown_00000000000000000000000000000000000000000000");
  await page.keyboard.press("Enter");
  await expect(page.getByRole("alert")).not.toBeEmpty();
}
