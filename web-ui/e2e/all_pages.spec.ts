// Properties of every page: accessibility, narrow windows, several tabs, no content from other hosts.
import { expectSound } from "./accessibility";
import { expect, live, opened, test } from "./setup";

const ROUTE = "caller=gateway&cluster=default&callee=orders&method=shop.v1.Orders%2FPlace";
const PAGES = ["/", "/chain", "/rules", "/rule?new=1", `/rule?${ROUTE}`, "/uncovered", "/guards", "/guard?new=1", "/queues", "/queue?name=stock-later", "/queue-settings?name=stock-later", "/clients",
  "/history", "/history?rev=1", "/history?from=0&to=1", "/kill?callee=stock", `/route?${ROUTE}`];

for (const path of PAGES) {
  test(`${path} is accessible in both schemes and does not scroll sideways`, async ({ page }) => {
    await live(page, path);
    await expect(page.getByText(/^(Asking|Comparing)/)).toHaveCount(0);
    // The server's validation arrives after the form.
    if (/^.(rule|guard|queue-settings)\?/.test(path)) await expect(page.getByText(/Valid|invalid setting/)).toBeVisible();
    await expectSound(page);
  });
}

test("nothing moves with reduced motion, and something does without", async ({ page }) => {
  const moving = () => page.evaluate(() => [...document.querySelectorAll("*")].filter((element) => {
    const { transitionDuration, animationName } = getComputedStyle(element);
    return animationName !== "none" || transitionDuration.split(",").some((duration) => parseFloat(duration) > 0);
  }).length);
  await page.emulateMedia({ reducedMotion: "no-preference" });
  await opened(page);
  expect(await moving()).toBeGreaterThan(0);
  await page.emulateMedia({ reducedMotion: "reduce" });
  for (const path of PAGES) {
    await live(page, path);
    expect(await moving(), path).toBe(0);
  }
});

test("a second tab goes on when the first is closed", async ({ page, context }) => {
  await opened(page);
  const second = await context.newPage();
  await opened(second);
  await page.close();
  await expect(second.getByTestId("liveness")).toContainText("live");
  await second.close();
});

test.describe("a page with a foreign script", () => {
  test.use({ expected: /violates the following Content Security Policy/ });

  test("the content security policy allows nothing from other hosts", async ({ page, request }) => {
    const answer = await request.get("/");
    expect(answer.ok()).toBe(true);
    expect(answer.headers()["content-security-policy"]).toContain("default-src 'self'");
    await live(page, "/nowhere");
    // Injected scripts would not run.
    const refused = await page.evaluate(async () => {
      const violations: string[] = [];
      document.addEventListener("securitypolicyviolation", ({ effectiveDirective }) => violations.push(effectiveDirective));
      const script = Object.assign(document.createElement("script"), { textContent: "globalThis.ran = true" });
      document.head.append(script);
      await new Promise((resolve) => { setTimeout(resolve); });
      return { violations, ran: "ran" in globalThis };
    });
    expect(refused).toEqual({ violations: ["script-src-elem"], ran: false });
  });
});

test("an unknown address is reported", async ({ page }) => {
  await live(page, "/nowhere");
  await expect(page.getByText("There is no page at this address.")).toBeVisible();
});
