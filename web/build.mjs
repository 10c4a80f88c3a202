// Builds the script and the style of the pages into the Python package, or into the folder that is
// named on the command line. The result depends on nothing but the sources and the lock file.
import { build } from "esbuild";
import { fileURLToPath } from "node:url";
import { readFileSync } from "node:fs";
import path from "node:path";

const here = path.dirname(fileURLToPath(import.meta.url));
const into = process.argv[2] ?? path.join(here, "../src/ridgeline/report/renderers/assets");

const licence = readFileSync(path.join(here, "node_modules/uplot/LICENSE"), "utf8").trim();

await build({
  absWorkingDir: here,
  entryPoints: { page: "src/page.ts", style: "src/style.css" },
  outdir: into,
  bundle: true,
  minify: true,
  charset: "utf8",
  format: "iife",
  target: ["es2022"],
  banner: { js: `/*! Contains uPlot:\n${licence}\n*/` },
  logLevel: "warning",
});
