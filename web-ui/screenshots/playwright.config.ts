// `cargo xtask screenshots`: pictures of every page, with the browser of the tests.
import { defineConfig } from "@playwright/test";
import tests from "../playwright.config";

export default defineConfig({
  testDir: ".",
  testMatch: "take.ts",
  // Ten thousand rules and a browser may share a busy machine.
  timeout: 240_000,
  expect: { timeout: 100_000 },
  forbidOnly: true,
  // Most of the time is waiting.
  workers: 3,
  fullyParallel: true,
  reporter: "line",
  globalSetup: "./servers.ts",
  globalTimeout: 90 * 60_000,
  use: { ...tests.use, locale: "en-GB", timezoneId: "UTC", contextOptions: { reducedMotion: "reduce" } },
});
