// What holds for every page in every state: nothing is wrong for assistive technology in either scheme, and a narrow
// window does not scroll sideways; where one is in a tour by keyboard can be seen.
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
    // There are no frames: the way that opens no further page for them does.
    const { violations } = await new AxeBuilder({ page }).setLegacyMode(true).analyze();
    const found = violations.map(({ id, nodes }) => [id, nodes.map(({ html }) => html)]);
    expect(found, `${colorScheme}, ${viewport.width} px wide`).toEqual([]);
    expect(await sideways(page), `wider than ${viewport.width} px`).toEqual([]);
  }
  await page.setViewportSize(WIDE);
}

// What reaches beyond the window's right side and can be scrolled to; nothing where the page does not scroll.
function sideways(page: Page): Promise<string[]> {
  return page.evaluate(() => {
    const { scrollWidth, clientWidth } = document.documentElement;
    if (scrollWidth <= clientWidth) return [];
    const beyond = [...document.body.querySelectorAll("*")].filter((element) => element.getBoundingClientRect().right > clientWidth + 1);
    return beyond.slice(0, 5).map((element) => element.outerHTML.slice(0, 120));
  });
}

// Presses Tab until this has the focus, which must be seen wherever it stops on the way.
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

// Whether this has the focus; and what has it without a sign of it.
function focusOn(wanted: Element): { there: boolean; unseen: string } {
  const element = document.activeElement;
  const there = element === wanted;
  if (element === null || element === document.body || element.matches("main, dialog")) return { there, unseen: "" };
  const { outlineStyle, outlineWidth } = getComputedStyle(element);
  const { width, height } = element.getBoundingClientRect();
  const outlined = outlineStyle !== "none" && parseFloat(outlineWidth) > 0;
  // In a picture a shape's border is the sign.
  const shape = element.querySelector("rect");
  const bordered = shape !== null && parseFloat(getComputedStyle(shape).strokeWidth) >= 3;
  const seen = (outlined || bordered) && width > 0 && height > 0;
  return { there, unseen: seen ? "" : element.outerHTML.slice(0, 200) };
}
