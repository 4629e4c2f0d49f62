// Generates the TypeScript messages from a descriptor set: node generate.mjs <folder> [<set>, else stdin].
//
// With them goes `comments.ts`: the comments of the .proto files on each field and value, which the web UI shows as help.
// Runs the plugin as protoc or buf would, so that neither is needed.
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
  fileToGenerate: protoFile.map((file) => file.name).filter((name) => !name.startsWith("google/protobuf/")),
  protoFile,
});

// What operators set: all messages of a file, or those that match.
const SETTINGS = { "damper/v1/policy.proto": /^/, "damper/v1/guards.proto": /^/, "damper/v1/queues.proto": /^(Queue|OnStop)(\.|$)/ };

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
for (const { name, content } of [...response.file, { name: "comments.ts", content: comments() }]) {
  const path = join(folder, name);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, content);
}

// By full name: "damper.v1.Retry.max_attempts".
function comments() {
  const found = {};
  for (const file of protoFile.filter(({ name }) => name in SETTINGS)) {
    for (const { path, leadingComments } of file.sourceCodeInfo?.location ?? []) {
      const name = leadingComments.trim() && nameAt(file, [...path]);
      if (name && SETTINGS[file.name].test(name)) found[`${file.package}.${name}`] = leadingComments.trim().replaceAll(/\s*\n\s*/g, " ").replaceAll("`", "");
    }
  }
  return `export const comments: Readonly<Record<string, string>> = ${JSON.stringify(found, null, 2)};\n`;
}

// The numbers are those of descriptor.proto: messages 4, their fields 2 and nested messages 3, enums 5 (4 within a
// message), their values 2.
function nameAt(file, path) {
  let [at, names] = [file, []];
  let inMessage = false;
  while (path.length > 1) {
    const [kind, index] = path.splice(0, 2);
    const list = inMessage
      ? { 2: at.field, 3: at.nestedType, 4: at.enumType }[kind]
      : { 4: at.messageType, 5: at.enumType, 2: at.value }[kind];
    at = list?.[index];
    if (at === undefined) return undefined;
    names = [...names, at.name];
    inMessage = at.$typeName === "google.protobuf.DescriptorProto";
  }
  return path.length === 0 ? names.join(".") : undefined;
}
