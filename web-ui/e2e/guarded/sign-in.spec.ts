// A server that requires tokens: sign-in, identity, sign-out and revocation.
//
// DAMPER_GUARDED_URL names the server, DAMPER_GUARDED_TOKEN is the token of an admin, with which the tests
// create their tokens.
import { createClient } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import { expect, test as base } from "@playwright/test";
import type { Page } from "@playwright/test";
import { Mode } from "../../gen/damper/v1/policy_pb";
import { Queues } from "../../gen/damper/v1/queues_pb";
import { Role, Tokens } from "../../gen/damper/v1/tokens_pb";
import { heed } from "../browser_errors";
import { expectSound, tabTo } from "../accessibility";

const server = process.env["DAMPER_GUARDED_URL"];
const admin = process.env["DAMPER_GUARDED_TOKEN"];
if (!server || !admin) throw new Error("set DAMPER_GUARDED_URL and DAMPER_GUARDED_TOKEN to a server that asks for tokens and an admin's token");

const transport = createGrpcWebTransport({
  baseUrl: server,
  interceptors: [(next) => (request) => {
    request.header.set("authorization", `Bearer ${admin}`);
    return next(request);
  }],
});
const tokens = createClient(Tokens, transport);
const queues = createClient(Queues, transport);

const test = base.extend<{ quiet: undefined }>({
  quiet: [
    async ({ context }, use) => {
      // Requests before the sign-in are rejected, and the browser logs it.
      const complain = heed(context, server, /status of 40[13]/);
      await use(undefined);
      complain();
    },
    { auto: true },
  ],
});

async function viewer(name: string) {
  const { token, secret } = await tokens.createToken({ name, role: Role.VIEWER });
  if (token === undefined) throw new Error("no token was made");
  return { id: token.id, secret };
}

async function signIn(page: Page, secret: string): Promise<void> {
  await page.goto("/");
  await page.getByLabel("Token").fill(secret);
  await page.getByRole("button", { name: "Sign in" }).click();
  await expect(page.getByTestId("liveness")).toContainText("live");
}

test("nothing is shown before sign-in, and a wrong token is reported", async ({ page }) => {
  await page.goto("/");
  await expect(page.getByLabel("Token")).toBeFocused();
  await expect(page.locator("table")).toHaveCount(0);
  await page.getByLabel("Token").fill("damper_unknown_00000000000000000000000000000000000000000000");
  await page.keyboard.press("Enter");
  await expect(page.getByRole("alert")).not.toBeEmpty();
  await expect(page.getByLabel("Token")).toBeVisible();
});

test("a session survives reloads and tabs; scripts cannot read it", async ({ page, context }) => {
  const { secret } = await viewer("browser");
  await signIn(page, secret);
  await expect(page.getByTestId("who")).toContainText(/browser.*viewer/s);
  const cookies = await context.cookies();
  expect(cookies).toHaveLength(1);
  const secure = server.startsWith("https:");
  const name = secure ? "__Host-damper-session" : "damper-session";
  expect(cookies[0]).toMatchObject({ name, httpOnly: true, secure, sameSite: "Strict", path: "/" });
  expect(cookies[0]?.value).not.toContain(secret.slice(-20));
  const kept = await page.evaluate(() => document.cookie + JSON.stringify({ ...localStorage, ...sessionStorage }));
  expect(kept).not.toContain(secret.slice(-20));
  await page.reload();
  await expect(page.getByTestId("liveness")).toContainText("live");
  const second = await context.newPage();
  await second.goto("/");
  await expect(second.getByTestId("liveness")).toContainText("live");
  // Signing out applies to every tab.
  await page.getByRole("button", { name: "Sign out" }).click();
  await expect(page.getByLabel("Token")).toBeVisible();
  await expect(second.getByLabel("Token")).toBeVisible();
  expect(await context.cookies()).toEqual([]);
});

test("a revoked token ends the view within five seconds", async ({ page }) => {
  const { id, secret } = await viewer("revoked");
  await signIn(page, secret);
  await tokens.revokeToken({ id });
  await expect(page.getByLabel("Token")).toBeVisible({ timeout: 5_000 });
  await expect(page.locator("table")).toHaveCount(0);
});

test("signing in and out by keyboard is accessible, also with errors", async ({ page }) => {
  const { secret } = await viewer("keyboard");
  await page.goto("/");
  await expect(page.getByLabel("Token")).toBeFocused();
  await expectSound(page);
  await page.keyboard.type("not a token");
  await page.keyboard.press("Enter");
  await expect(page.getByRole("alert")).toContainText("Invalid token");
  await expectSound(page);
  await page.keyboard.press("ControlOrMeta+A");
  await page.keyboard.type(secret);
  await tabTo(page, page.getByRole("button", { name: "Sign in" }));
  await page.keyboard.press("Enter");
  await expect(page.getByTestId("who")).toContainText("keyboard");
  await expectSound(page);
  await tabTo(page, page.getByRole("button", { name: "Sign out" }));
  await page.keyboard.press("Enter");
  await expect(page.getByLabel("Token")).toBeFocused();
});

async function token(name: string, role: Role) {
  const { token, secret } = await tokens.createToken({ name, role });
  if (token === undefined) throw new Error("no token was made");
  return { id: token.id, secret };
}

const RULE = "/rule?caller=gateway&cluster=default&callee=orders&method=a.B%2FC";

test("a viewer sees findings and no control that is rejected", async ({ page }) => {
  const { secret } = await viewer("looker");
  await signIn(page, secret);
  await page.goto(RULE);
  await expect(page.getByTestId("read-only")).toContainText("your role is viewer; required role: editor");
  await expect(page.getByText("✓ Valid.")).toBeVisible();
  await expect(page.getByLabel("Max attempts")).toBeDisabled();
  await expect(page.getByRole("button", { name: "No changes" })).toHaveCount(0);
  await expect(page.getByRole("button", { name: /^Review/ })).toBeDisabled();
  await expectSound(page);
  await page.goto("/kill?callee=orders");
  await expect(page.getByRole("button", { name: "Stop retries…" })).toBeDisabled();
  await expect(page.getByText(/required role: operator/).first()).toBeVisible();
  await page.goto("/rules");
  await expect(page.getByTestId("liveness")).toContainText("live");
  await expect(page.getByRole("link", { name: "New rule" })).toHaveCount(0);
});

test("a revoked token is named, and the draft is restored", async ({ page }) => {
  const first = await token("first", Role.EDITOR);
  const second = await token("second", Role.EDITOR);
  await signIn(page, first.secret);
  await page.goto(RULE);
  await page.getByLabel("Max attempts").fill("4");
  await tokens.revokeToken({ id: first.id });
  await expect(page.getByTestId("signed-out")).toContainText("your token was revoked");
  await expectSound(page);
  await page.getByLabel("Token").fill(second.secret);
  await page.getByRole("button", { name: "Sign in" }).click();
  await expect(page.getByTestId("restored")).toBeVisible();
  await expect(page.getByLabel("Max attempts")).toHaveValue("4");
  // The server knows the identity: no name is requested, and no reason is required.
  await page.getByRole("button", { name: /^Review/ }).click();
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByLabel("Reason (recorded in history)")).toBeVisible();
  await expect(dialog.getByLabel(/^Your name/)).toHaveCount(0);
  await page.keyboard.press("Escape");
  // Sign out discards drafts.
  await page.getByRole("button", { name: "Sign out" }).click();
  await expect(page.getByLabel("Token")).toBeVisible();
  await expect(page.getByTestId("signed-out")).toHaveCount(0);
  expect(await page.evaluate(() => Object.keys(sessionStorage).filter((key) => key.startsWith("damper.draft")))).toEqual([]);
});

test("a viewer sees queues and jobs, and no button that the server would reject", async ({ page }) => {
  const { secret } = await viewer("queues");
  await queues.putQueue({ queue: { name: "later", policy: { mode: Mode.ENFORCE } }, options: { reason: "a browser test" } });
  await signIn(page, secret);
  await page.getByRole("link", { name: "Queues" }).click();
  await page.getByRole("link", { name: "later" }).click();
  await expect(page.getByRole("link", { name: "Show all settings" })).toBeVisible();
  for (const state of ["Waiting", "Dead", "Ended"]) {
    await page.getByRole("button", { name: state }).click();
    await expect(page.getByText(/^No (job is|ended job)/)).toBeVisible();
    await expect(page.getByRole("button", { name: /Pause|Run|Cancel|Replay|Delete/ })).toHaveCount(0);
  }
  await page.getByRole("link", { name: "Show all settings" }).click();
  await expect(page.getByTestId("read-only")).toContainText("required role: editor");
  await expect(page.getByRole("button", { name: "Delete the queue…" })).toBeDisabled();
  await expect(page.locator('[data-field="max_in_flight"] input')).toBeDisabled();
});
