// Generates the TypeScript messages from a descriptor set: node generate.mjs <folder> [<set>, else stdin].
//
// It does what protoc or buf would do, ask the plugin and write its answer, so that neither is needed.
// Used by the build script and, in the checkout, by `npm run generate`.
import { spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import {
  CodeGeneratorRequestSchema,
  CodeGeneratorResponseSchema,
  FileDescriptorSetSchema,
} from "@bufbuild/protobuf/wkt";

const [folder, set = 0] = process.argv.slice(2);
if (folder === undefined) throw new Error("usage: node generate.mjs <folder> [<descriptor set>]");

const protoFile = fromBinary(FileDescriptorSetSchema, readFileSync(set)).file;
const request = create(CodeGeneratorRequestSchema, {
  parameter: "target=ts,import_extension=none",
  // google.protobuf comes with the runtime.
  fileToGenerate: protoFile.map((file) => file.name).filter((name) => !name.startsWith("google/")),
  protoFile,
});

const plugin = fileURLToPath(import.meta.resolve("@bufbuild/protoc-gen-es/package.json"));
const { status, stdout, stderr, error } = spawnSync(
  process.execPath,
  [join(dirname(plugin), "bin/protoc-gen-es")],
  { input: toBinary(CodeGeneratorRequestSchema, request), maxBuffer: 64 << 20 },
);
if (error) throw error;
if (status !== 0) throw new Error(`protoc-gen-es ended with ${status}: ${stderr}`);
const response = fromBinary(CodeGeneratorResponseSchema, stdout);
if (response.error) throw new Error(response.error);

rmSync(folder, { recursive: true, force: true });
for (const { name, content } of response.file) {
  const path = join(folder, name);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, content);
}
