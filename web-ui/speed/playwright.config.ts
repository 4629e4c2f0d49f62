// Like the tests of the page, on the server that DAMPER_URL names: one filled for measuring.
import { defineConfig } from "@playwright/test";
import tests from "../playwright.config";

export default defineConfig({
  ...tests,
  testDir: ".",
  timeout: 900_000,
  projects: [{ name: "speed" }],
});
