// Checks of every page in every state: no accessibility violation in either scheme, no horizontal scrolling
// in a narrow window, and a visible focus.
import { AxeBuilder } from "@axe-core/playwright";
import { expect } from "@playwright/test";
import type { Locator, Page } from "@playwright/test";

const WIDE = { width: 1440, height: 900 };
const NARROW = { width: 420, height: 900 };

export async function expectSound(page: Page): Promise<void> {
  await page.emulateMedia({ reducedMotion: "reduce" });
  for (const [viewport, colorScheme] of [[WIDE, "light"], [WIDE, "dark"], [NARROW, "dark"]] as const) {
    await page.setViewportSize(viewport);
    await page.emulateMedia({ colorScheme });
    // Without frames, the legacy mode opens no further page.
    const { violations } = await new AxeBuilder({ page }).setLegacyMode(true).analyze();
    const found = violations.map(({ id, nodes }) => [id, nodes.map(({ html }) => html)]);
    expect(found, `${colorScheme}, ${viewport.width} px wide`).toEqual([]);
    expect(await sideways(page), `wider than ${viewport.width} px`).toEqual([]);
  }
  await page.setViewportSize(WIDE);
}

// Elements that extend beyond the right side of the window and can be scrolled to.
function sideways(page: Page): Promise<string[]> {
  return page.evaluate(() => {
    const { scrollWidth, clientWidth } = document.documentElement;
    if (scrollWidth <= clientWidth) return [];
    const beyond = [...document.body.querySelectorAll("*")].filter((element) => element.getBoundingClientRect().right > clientWidth + 1);
    return beyond.slice(0, 5).map((element) => element.outerHTML.slice(0, 120));
  });
}

// Presses Tab until this has the focus; the focus must be visible at each stop.
export async function tabTo(page: Page, wanted: Locator): Promise<void> {
  await expect(wanted).toBeEnabled();
  for (let presses = 0; presses < 150; presses += 1) {
    const { there, unseen } = await wanted.evaluate(focusOn);
    expect(unseen).toBe("");
    if (there) return;
    await page.keyboard.press("Tab");
  }
  throw new Error(`Tab does not lead to ${wanted.toString()}`);
}

// Whether this has the focus; returns a focused element without a visible focus.
function focusOn(wanted: Element): { there: boolean; unseen: string } {
  const element = document.activeElement;
  const there = element === wanted;
  if (element === null || element === document.body || element.matches("main, dialog")) return { there, unseen: "" };
  const { outlineStyle, outlineWidth } = getComputedStyle(element);
  const { width, height } = element.getBoundingClientRect();
  const outlined = outlineStyle !== "none" && parseFloat(outlineWidth) > 0;
  // In an SVG the border of a shape shows the focus.
  const shape = element.querySelector("rect");
  const bordered = shape !== null && parseFloat(getComputedStyle(shape).strokeWidth) >= 3;
  const seen = (outlined || bordered) && width > 0 && height > 0;
  return { there, unseen: seen ? "" : element.outerHTML.slice(0, 200) };
}
