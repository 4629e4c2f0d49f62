import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

export default defineConfig({
  root: "page",
  // No svelte.config.js: the page needs no preprocessor beyond what Svelte does with TypeScript itself.
  plugins: [svelte({ configFile: false })],
  resolve: { alias: { $wire: new URL("gen/damper/v1", import.meta.url).pathname } },
  worker: { format: "es" },
  build: {
    outDir: "../dist",
    emptyOutDir: true,
    target: "es2023",
    // A data: URL would be refused under default-src 'self'.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
});
