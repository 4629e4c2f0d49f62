// Ten thousand rules: one page is drawn, the filter covers all, and a change redraws one row. `cargo xtask
// page-speed` measures times; here rows are counted.
import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { Mode } from "../../gen/damper/v1/policy_pb";
import { expect, live, test } from "./setup";

const numbered = (what: string) => Array.from({ length: 100 }, (_, nr) => `${what}-${String(nr).padStart(3, "0")}`);
const [CALLERS, CALLEES] = [numbered("caller"), numbered("callee")];
const named = (caller: string, callee: string) => `${caller} * ${callee} *`;

// From a file in one revision: a browser's protocol cannot stream a change set to the server.
async function applyAll(url: string): Promise<void> {
  const rules = CALLERS.flatMap((caller) => CALLEES.map((callee) => JSON.stringify({
    kind: "Rule",
    key: { caller_service: caller, caller_cluster: "*", callee_service: callee, callee_method: "*" },
    policy: { mode: "observe", retry: { max_attempts: 2 } },
  })));
  const folder = await mkdtemp(join(tmpdir(), "damper-page-rules-"));
  const file = join(folder, "rules.yaml");
  await writeFile(file, rules.join("\n---\n"));
  await promisify(execFile)(process.env["DAMPER_BINARY"] ?? "", ["apply", "--server", url, "-f", file], { maxBuffer: 1 << 24 });
  await rm(folder, { recursive: true });
}

test("of 10,000 rules a page is drawn, and a change redraws one row", async ({ page, api, served }) => {
  await applyAll(served.url);
  await live(page, "/rules");
  const [rows, count, filter] = [page.locator("table.rules tbody tr"), page.getByRole("region", { name: "Rules" }).locator(".count"), page.getByRole("searchbox")];
  const shown = () => rows.evaluateAll((all) => all.map((row) => row.getAttribute("data-rule")));
  await expect(count).toHaveText("10,000 rules");
  await expect(page.getByText("Page 1 of 100")).toBeVisible();
  expect(await shown()).toEqual(CALLEES.map((callee) => named("caller-000", callee)));

  await filter.fill("caller-04");
  await expect(count).toHaveText("1,000 of 10,000 rules");
  await expect(page.getByText("Page 1 of 10")).toBeVisible();
  await expect(rows).toHaveCount(100);
  await filter.fill("callee-007");
  await expect(count).toHaveText("100 of 10,000 rules");
  expect(await shown()).toEqual(CALLERS.map((caller) => named(caller, "callee-007")));

  const key = { callerService: "caller-042", callerCluster: "*", calleeService: "callee-007", calleeMethod: "*" };
  // The mark disappears after some seconds.
  const marked = await page.evaluateHandle(() => {
    const found: (string | null)[] = [];
    const note = ({ target }: MutationRecord) => { if (target instanceof Element && target.matches("tr.fresh")) found.push(target.getAttribute("data-rule")); };
    new MutationObserver((records) => { records.forEach(note); }).observe(document.body, { subtree: true, attributeFilter: ["class"] });
    return found;
  });
  const { rule } = await api.rules.putRule({ rule: { key, policy: { mode: Mode.ENFORCE, retry: { maxAttempts: 4 } } } });
  await expect.poll(() => marked.jsonValue()).toEqual([named("caller-042", "callee-007")]);
  const changed = page.locator(`tr[data-rule="${named("caller-042", "callee-007")}"]`);
  await expect(changed.locator('[data-label="Mode"]')).toHaveText("enforce");
  await expect(changed.locator('[data-label="Attempts"]')).toHaveText("4");
  await expect(changed.locator('[data-label="Revision"]')).toContainText(String(rule?.revision));
  const others = rows.filter({ has: page.locator('[data-label="Attempts"]').getByText("2", { exact: true }) });
  await expect(others).toHaveCount(99);

  await filter.fill("caller-042 callee-007");
  await expect(count).toHaveText("1 of 10,000 rules");
  expect(await shown()).toEqual([named("caller-042", "callee-007")]);
  await filter.press("Escape");
  await expect(count).toHaveText("10,000 rules");
  await expect(rows).toHaveCount(100);
});
