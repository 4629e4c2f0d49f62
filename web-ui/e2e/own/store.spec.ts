// The store is paused: services continue, the web UI shows since when, writes are disabled, and it recovers.
import { Mode } from "../../gen/damper/v1/policy_pb";
import { expectSound } from "../accessibility";
import { Etcd } from "./etcd";
import { Served } from "./server";
import { KEY, at, expect, live, say, setting, test as base } from "./setup";

const test = base.extend<{ etcd: Etcd }>({
  // eslint-disable-next-line no-empty-pattern
  etcd: async ({}, use) => {
    const etcd = await Etcd.start();
    await use(etcd);
    await etcd.end();
  },
  served: async ({ etcd }, use) => {
    const served = await Served.start(etcd.store);
    await use(served);
    await served.end();
  },
});

test("a paused store is shown with its time, and Save is disabled", async ({ page, api, etcd }) => {
  await api.rules.putRule({ rule: { key: KEY, policy: { mode: Mode.OBSERVE, retry: { maxAttempts: 2 } } } });
  await live(page, at("/rule"));
  await setting(page, "retry.max_attempts").fill("4");
  const press = page.getByRole("button", { name: "Review 1 change…" });
  await expect(press).toBeEnabled();
  etcd.standStill();
  await expect(page.getByText(/The control plane's store has not answered since \d{2}:\d{2}:\d{2} \S+\./)).toBeVisible({ timeout: 30_000 });
  await expect(press).toBeDisabled();
  await expect(press).toHaveAccessibleDescription(/The store is not responding: only kill switches can be changed/);
  await expect(page.getByTestId("liveness")).toContainText("live");
  await expectSound(page);
  etcd.goOn();
  await expect(page.getByText("The store has not answered")).toHaveCount(0);
  await expect(setting(page, "retry.max_attempts")).toHaveValue("4");
  await press.click();
  await say(page.getByRole("dialog"));
  await page.getByRole("dialog").getByRole("button", { name: "Save" }).click();
  await expect(page.getByTestId("convergence")).toContainText(/Stored at revision \d+/);
});
