// `node smaller.mjs FROM TO`: each PNG of a folder with a palette of its own, a quarter of its size. What is in the
// other folder under another name stays.
import { mkdir, readdir, stat } from "node:fs/promises";
import { join } from "node:path";
import sharp from "sharp";

const [from, to] = process.argv.slice(2);
if (from === undefined || to === undefined) throw new Error("usage: node smaller.mjs FROM TO");
await mkdir(to, { recursive: true });
const names = (await readdir(from)).filter((name) => name.endsWith(".png"));
for (const name of names) await sharp(join(from, name)).png({ palette: true, colours: 96, effort: 10, dither: 0 }).toFile(join(to, name));
const sizes = await Promise.all((await readdir(to)).map(async (name) => (await stat(join(to, name))).size));
console.log(`${names.length} pictures taken; ${sizes.length} in ${to}, ${(sizes.reduce((sum, size) => sum + size, 0) / 1e6).toFixed(1)} MB`);
