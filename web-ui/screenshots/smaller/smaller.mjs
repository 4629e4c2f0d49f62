// `node smaller.mjs FROM TO`: replaces each PNG of TO by the one of that name in FROM, with a palette, which makes
// it a quarter of its size. Fails before it writes if FROM lacks one.
import { access, readdir, stat } from "node:fs/promises";
import { join } from "node:path";
import sharp from "sharp";

const [from, to] = process.argv.slice(2);
if (from === undefined || to === undefined) throw new Error("usage: node smaller.mjs FROM TO");
const names = (await readdir(to)).filter((name) => name.endsWith(".png"));
await Promise.all(names.map((name) => access(join(from, name))));
for (const name of names) await sharp(join(from, name)).png({ palette: true, quality: 95, effort: 10, dither: 0 }).toFile(join(to, name));
const sizes = await Promise.all(names.map(async (name) => (await stat(join(to, name))).size));
console.log(`${names.length} pictures in ${to}, ${(sizes.reduce((sum, size) => sum + size, 0) / 1e6).toFixed(1)} MB`);
