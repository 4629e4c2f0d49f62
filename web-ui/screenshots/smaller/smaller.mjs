// `node smaller.mjs FROM TO`: each PNG of a folder with a palette of its own, a quarter of its size, and beside them a
// README.md that shows them. What is in the other folder under another name stays.
import { mkdir, readdir, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import sharp from "sharp";

const [from, to] = process.argv.slice(2);
if (from === undefined || to === undefined) throw new Error("usage: node smaller.mjs FROM TO");
await mkdir(to, { recursive: true });
const pngs = async (folder) => (await readdir(folder)).filter((name) => name.endsWith(".png")).sort();
const taken = await pngs(from);
for (const name of taken) await sharp(join(from, name)).png({ palette: true, colours: 96, effort: 10, dither: 0 }).toFile(join(to, name));

const all = await pngs(to);
const sizes = await Promise.all(all.map(async (name) => (await stat(join(to, name))).size));
await writeFile(join(to, "README.md"), gallery(all));
console.log(`${taken.length} pictures taken; ${all.length} in ${to}, ${(sizes.reduce((sum, size) => sum + size, 0) / 1e6).toFixed(1)} MB`);

// Of each page the wide one, full; the others as links.
function gallery(names) {
  const parts = names.map((name) => /^(?<page>.*)-(?<state>full|many|empty|loading|failing)-(?<width>\d+)-(?<scheme>light|dark)\.png$/.exec(name)?.groups);
  const pages = new Map();
  names.forEach((name, at) => pages.set(parts[at]?.page, [...(pages.get(parts[at]?.page) ?? []), name]));
  const sections = [...pages].map(([page, of]) => {
    const links = of.map((name) => `[${name.slice(page.length + 1, -4).replaceAll("-", " ")}](${name})`).join(", ");
    const shown = `<picture><source media="(prefers-color-scheme: dark)" srcset="${page}-full-1440-dark.png"><img alt="${page.replaceAll("-", " ")}" src="${page}-full-1440-light.png" width="720"></picture>`;
    return `## ${page.replaceAll("-", " ")}\n\n${shown}\n\n${links}\n`;
  });
  return `# Every page of the operators' page\n\nTaken by \`cargo xtask screenshots\` on the real binary. The files are \`<page>-<state>-<width>-<scheme>.png\`: each page full, and where
it differs with many services (\`many\`), wide and narrow, light and dark; empty, loading and failing wide and light, narrow and
dark.\n\n${sections.join("\n")}`;
}
