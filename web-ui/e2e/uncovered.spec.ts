// Routes without rules: listed, with a proposed rule.
import { create } from "@bufbuild/protobuf";
import { RuleSchema } from "../gen/damper/v1/rules_pb";
import { expectSound } from "./accessibility";
import { expect, live, rules, test } from "./setup";

// The last hop of the demo's chain, and the rules that may cover it.
const HOP = { callerService: "inventory", callerCluster: "default", calleeService: "stock", calleeMethod: "shop.v1.Stock/Take" };

test("a route without a rule is listed, with a proposal for the editor", async ({ page }) => {
  const taken = [];
  try {
    for (;;) {
      const { winner } = await rules.explain({ route: HOP });
      if (winner?.key === undefined) break;
      await rules.deleteRule({ key: winner.key });
      taken.push(winner);
    }
    await live(page, "/uncovered");
    const row = page.locator(`tr[data-route="${Object.values(HOP).join(" ")}"]`);
    await expect(row.locator('[data-label="Calls/s"]')).toHaveText(/[1-9]/);
    await row.getByRole("button", { name: /Propose a rule/ }).click();
    const dialog = page.getByRole("dialog");
    await expect(dialog.getByTestId("difference")).toContainText(/policy\.mode.*observe/s);
    await expect(dialog).toContainText(/Why these values.*calls/s);
    await expectSound(page);
    await dialog.getByRole("button", { name: "Open in the editor" }).click();
    await expect(page).toHaveURL(/\/rule\?caller=inventory.*propose=1/);
    await expect(page.getByText("Reasons for the proposed settings")).toBeVisible();
  } finally {
    for (const { key, policy, owner } of taken) {
      await rules.putRule({ rule: create(RuleSchema, { owner, ...(key && { key }), ...(policy && { policy }) }) });
    }
  }
});
