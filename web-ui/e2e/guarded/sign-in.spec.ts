// The page on a server that asks for tokens: signing in, who one is, signing out, being revoked.
//
// DAMPER_GUARDED_URL names the server, DAMPER_GUARDED_TOKEN is an admin's; the tests make the tokens that they use with
// it.
import { createClient } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import { expect, test } from "@playwright/test";
import type { Page } from "@playwright/test";
import { Role, Tokens } from "../../gen/damper/v1/tokens_pb";

const server = process.env["DAMPER_GUARDED_URL"];
const admin = process.env["DAMPER_GUARDED_TOKEN"];
if (!server || !admin) throw new Error("set DAMPER_GUARDED_URL and DAMPER_GUARDED_TOKEN to a server that asks for tokens and an admin's token");

const tokens = createClient(Tokens, createGrpcWebTransport({
  baseUrl: server,
  interceptors: [(next) => (request) => {
    request.header.set("authorization", `Bearer ${admin}`);
    return next(request);
  }],
}));

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

test("nothing is shown before somebody signed in, and a wrong token is said to be wrong", async ({ page }) => {
  await page.goto("/");
  await expect(page.getByLabel("Token")).toBeFocused();
  await expect(page.locator("table")).toHaveCount(0);
  await page.getByLabel("Token").fill("damper_nobody_00000000000000000000000000000000000000000000");
  await page.keyboard.press("Enter");
  await expect(page.getByRole("alert")).not.toBeEmpty();
  await expect(page.getByLabel("Token")).toBeVisible();
});

test("a session lasts over reloads and tabs, and scripts can not read it", async ({ page, context }) => {
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
  // Signing out is for every tab.
  await page.getByRole("button", { name: "Sign out" }).click();
  await expect(page.getByLabel("Token")).toBeVisible();
  await expect(second.getByLabel("Token")).toBeVisible();
  expect(await context.cookies()).toEqual([]);
});

test("a revoked token ends what its holder sees within five seconds", async ({ page }) => {
  const { id, secret } = await viewer("revoked");
  await signIn(page, secret);
  await tokens.revokeToken({ id });
  await expect(page.getByLabel("Token")).toBeVisible({ timeout: 5_000 });
  await expect(page.locator("table")).toHaveCount(0);
});
