#!/usr/bin/env node
// Rebuild static/dist/ from static/package-lock.json; with --check, only say whether it is what the lock gives.
//
// The packages are unpacked in a temporary folder, so that static/ never holds a node_modules that would be served.
// Plotly's stylesheet is not in the small bundle's package: it comes from the package of the same version, whose
// digest package.json names.
import { createHash } from "node:crypto";
import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const root = new URL("../static/", import.meta.url).pathname;
const check = process.argv.includes("--check");
const manifest = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
const work = mkdtempSync(join(tmpdir(), "tessera-static-"));

const npm = (...args) => execFileSync("npm", args, { cwd: work, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
const sha256 = (path) => createHash("sha256").update(readFileSync(path)).digest("hex");

function unpackStylesheet(target) {
  const { package: name, file, integrity } = manifest.stylesheetOfPlotly;
  const version = manifest.dependencies["plotly.js-cartesian-dist-min"];
  const [packed] = JSON.parse(npm("pack", `${name}@${version}`, "--json"));
  const archive = join(work, packed.filename);
  const found = `sha512-${createHash("sha512").update(readFileSync(archive)).digest("base64")}`;
  if (found !== integrity) throw new Error(`${name}@${version} has ${found}, package.json says ${integrity}`);
  execFileSync("tar", ["-xzf", archive, "-C", work, `package/${file}`]);
  cpSync(join(work, "package", file), target);
}

function build(dist) {
  for (const name of ["package.json", "package-lock.json", ".npmrc"]) cpSync(join(root, name), join(work, name));
  npm("ci");
  mkdirSync(join(dist, "licences"), { recursive: true });
  const modules = join(work, "node_modules");
  cpSync(join(modules, "modern-normalize/modern-normalize.css"), join(dist, "modern-normalize.css"));
  cpSync(join(modules, "modern-normalize/license"), join(dist, "licences/modern-normalize.txt"));
  cpSync(join(modules, "plotly.js-cartesian-dist-min/plotly-cartesian.min.js"), join(dist, "plotly-cartesian.min.js"));
  cpSync(join(modules, "plotly.js-cartesian-dist-min/LICENSE"), join(dist, "licences/plotly.txt"));
  unpackStylesheet(join(dist, "plotly.css"));
  const files = ["modern-normalize.css", "plotly-cartesian.min.js", "plotly.css"];
  const versions = {
    packages: manifest.dependencies,
    sha256: Object.fromEntries(files.map((name) => [name, sha256(join(dist, name))])),
  };
  writeFileSync(join(dist, "versions.json"), `${JSON.stringify(versions, null, 2)}\n`);
}

const listing = (folder) =>
  readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath ?? entry.path, entry.name))
    .map((path) => `${path.slice(folder.length)} ${sha256(path)}`)
    .sort()
    .join("\n");

try {
  const target = join(root, "dist/");
  const built = check ? join(work, "dist/") : target;
  if (!check) rmSync(target, { recursive: true, force: true });
  mkdirSync(built, { recursive: true });
  build(built);
  if (check && listing(built) !== listing(target)) {
    console.error("static/dist/ is not what static/package-lock.json gives; run scripts/build-static and commit it.");
    process.exitCode = 1;
  } else console.log(check ? "static/dist/ is what the lock gives." : `Built ${target}`);
} finally {
  rmSync(work, { recursive: true, force: true });
}
