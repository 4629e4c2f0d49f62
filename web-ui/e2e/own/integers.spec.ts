// Every integer field of the messages: an impossible value is marked, and the form still works.
import type { DescMessage } from "@bufbuild/protobuf";
import { ScalarType } from "@bufbuild/protobuf";
import type { Page } from "@playwright/test";
import { CeilingSchema } from "../../gen/damper/v1/guards_pb";
import { Mode, PolicySchema } from "../../gen/damper/v1/policy_pb";
import { at, expect, KEY, live, setting, test } from "./setup";

const BAD = ["3.5", "-1", "99999999999", "1e3", "three"];

// By path, without the backoffs that the form does not support.
function integers({ fields }: DescMessage, before = ""): string[] {
  return fields.flatMap((field) => {
    const path = `${before}${field.name}`;
    if (field.fieldKind === "message" && path !== "retry.backoff") return integers(field.message, `${path}.`);
    const isInteger = field.fieldKind === "scalar" && [ScalarType.UINT32, ScalarType.UINT64, ScalarType.INT32, ScalarType.INT64].includes(field.scalar);
    return isInteger ? [path] : [];
  }).filter((path) => !path.endsWith(".seconds") && !path.endsWith(".nanos"));
}

async function tried(page: Page, paths: readonly string[], review: string | RegExp): Promise<void> {
  const press = page.getByRole("button", { name: review });
  for (const path of paths) {
    const input = setting(page, path);
    const field = page.locator(`[data-field="${path}"]`);
    const before = await input.inputValue();
    for (const text of BAD) {
      await input.fill(text);
      await expect(input, `${path}: ${text}`).toHaveAttribute("aria-invalid", "true");
      await expect(field).toContainText(`"${text}" is not a whole number`);
      await expect(press).toBeDisabled();
      await input.press("Enter");
      await expect(page.getByRole("dialog")).toHaveCount(0);
    }
    await input.fill("");
    await expect(input, `${path} may be empty`).toHaveAttribute("aria-invalid", "false");
    await input.fill(before);
    await expect(page.getByText("✓ Valid.")).toBeVisible();
  }
}

test("integer fields of a rule reject impossible values", async ({ page, api }) => {
  test.slow();
  const policy = {
    mode: Mode.OBSERVE, retry: {}, retryBreaker: {}, budget: {}, circuitBreaker: {}, stopWhen: { successRateBelow: 50 },
    hedge: { delay: { kind: { case: "fixed" as const, value: { nanos: 20_000_000 } } } },
  };
  await api.rules.putRule({ rule: { key: KEY, policy } });
  await live(page, at("/rule"));
  const paths = integers(PolicySchema);
  expect(paths.length).toBeGreaterThan(8);
  await setting(page, "timeout").fill("2s");
  await tried(page, paths, /^Review/);
  await setting(page, "retry.max_attempts").fill("4");
  await page.getByRole("button", { name: "Review 2 changes…" }).click();
  await expect(page.getByRole("dialog")).toContainText("retry.max_attempts");
});

test("integer fields of a guard reject impossible values", async ({ page, api }) => {
  await api.guards.putGuard({ guard: { key: { ...KEY, callerService: "*", callerCluster: "*" }, ceiling: { maxAttempts: 3, repeatLimit: {} } } });
  await live(page, at("/guard", { ...KEY, callerService: "*", callerCluster: "*" }));
  await page.getByLabel("Owner").fill("team-orders");
  await tried(page, integers(CeilingSchema), "Review and save…");
  await setting(page, "max_attempts").fill("2");
  await page.getByRole("button", { name: "Review and save…" }).click();
  await expect(page.getByRole("dialog")).toContainText("max_attempts");
});
