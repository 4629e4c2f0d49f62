// `cargo xtask screenshots`: pictures of every page, with the browser of the tests.
import { defineConfig } from "@playwright/test";
import tests from "../playwright.config";

export default defineConfig({
  testDir: ".",
  testMatch: "take.ts",
  timeout: 90_000,
  expect: { timeout: 30_000 },
  forbidOnly: true,
  // Much of the time is waiting.
  workers: 4,
  fullyParallel: true,
  reporter: "line",
  globalSetup: "./world.ts",
  globalTimeout: 40 * 60_000,
  use: { ...tests.use, locale: "en-GB", timezoneId: "UTC", contextOptions: { reducedMotion: "reduce" } },
});
