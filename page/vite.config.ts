import { defineConfig } from "vite";

// Everything lies flat beside index.html and is served below /page/: the server looks names up in a list.
export default defineConfig({
  base: "/page/",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/warmcell/interfaces/serve/page",
    emptyOutDir: true,
    assetsDir: "",
    assetsInlineLimit: 0,
    target: "es2022",
    modulePreload: { polyfill: false },
    rolldownOptions: {
      output: {
        entryFileNames: "[name]-[hash].js",
        chunkFileNames: "[name]-[hash].js",
        assetFileNames: "[name]-[hash][extname]",
      },
    },
  },
});
