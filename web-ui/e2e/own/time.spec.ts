// Times have a zone, and a wrong clock is detected.
import { Mode } from "../../gen/damper/v1/policy_pb";
import { expectSound } from "../accessibility";
import { expect, KEY, live, test } from "./setup";

test.use({ timezoneId: "Asia/Kolkata" });

test("every time has its zone", async ({ page, api }) => {
  await api.rules.putRule({ rule: { key: KEY, policy: { mode: Mode.OBSERVE } } });
  await api.kills.kill({ key: KEY, options: { reason: "a drill" } });
  await live(page, "/");
  await expect(page.getByText(/As of \d{2}:\d{2}:\d{2} GMT\+5:30/)).toBeVisible();
  await expect(page.getByTestId("kill")).toContainText(/until \d{2}:\d{2}:\d{2} GMT\+5:30 \(.* left\)/);
  await live(page, "/history");
  await expect(page.getByRole("row").filter({ hasText: KEY.calleeMethod }).first()).toContainText(/\d{4}.*\d{2}:\d{2}:\d{2} GMT\+5:30/);
  await expect(page.getByLabel("Since (GMT+5:30)")).toBeVisible();
});

for (const [apart, words] of [[5, "ahead of"], [-5, "behind"]] as const) {
  test(`a clock ${words} the control plane's is reported, and ages are right`, async ({ page, connect }) => {
    connect("gateway");
    await page.clock.setSystemTime(Date.now() + apart * 60_000);
    await live(page, "/clients");
    await expect(page.getByTestId("clock")).toContainText(new RegExp(`This machine's clock is (4 min 5\\d s|5 min \\d+ s) ${words} the control plane's`));
    await expect(page.getByRole("row").filter({ hasText: "gateway-1" })).toContainText(/0\.1\.0\d{1,2} s/);
    await expect(page.getByRole("row").filter({ hasText: "gateway-1" })).not.toContainText("min");
    await expectSound(page);
  });
}

test("a correct clock is not mentioned", async ({ page }) => {
  await live(page, "/");
  const asOf = page.getByText(/As of /);
  const before = await asOf.innerText();
  await expect(asOf).not.toHaveText(before);
  await expect(page.getByTestId("clock")).toHaveCount(0);
});
