// Checks Kubernetes manifests against the schemas of Kubernetes and of two well-known extensions, without a cluster and
// without the network: node check.mjs FILE|FOLDER...
//
// The schemas are those of the package kubernetes-models, which is made from Kubernetes' own description of its API.
// Each object is checked twice: by its validator (types, required fields, formats, enumerations), and by the TypeScript
// compiler as a literal of its type, which alone rejects fields that do not exist. What it does not check is what an
// object means; that is asserted in tests/tests/deployment.rs.
import { readFileSync, readdirSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import ts from "typescript";
import { parseAllDocuments } from "yaml";

const HERE = dirname(fileURLToPath(import.meta.url));
/** The versions that clusters serve today; the package also has schemas of some that are gone. */
const SCHEMAS = {
  v1: "kubernetes-models/v1",
  "apps/v1": "kubernetes-models/apps/v1",
  "networking.k8s.io/v1": "kubernetes-models/networking.k8s.io/v1",
  "policy/v1": "kubernetes-models/policy/v1",
  "cert-manager.io/v1": "@kubernetes-models/cert-manager/cert-manager.io/v1",
  "monitoring.coreos.com/v1": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1",
};
const KUSTOMIZATION_KEYS = ["apiVersion", "kind", "namespace", "resources", "configMapGenerator", "images"];

/** Every fault in these files and folders, as `FILE: FAULT`. */
export async function faultsIn(places) {
  const checked = places.flatMap(manifests).flatMap(documents);
  const faults = checked.flatMap(({ faults }) => faults);
  const objects = checked.filter(({ object }) => object !== undefined);
  const kustomizations = objects.filter(({ object }) => object.kind === "Kustomization");
  faults.push(...kustomizations.flatMap(faultsOfKustomization));
  const resources = objects.filter(({ object, file }) => isResource(object) && !isSettings(file));
  for (const other of objects.filter((one) => !kustomizations.includes(one) && !resources.includes(one))) {
    if (!isSettings(other.file)) faults.push(`${other.file}: has no apiVersion and kind`);
  }
  const patched = withPatches(resources.filter((one) => !kustomizations.includes(one)));
  for (const resource of patched) {
    faults.push(...(await faultsByValidator(resource)));
  }
  faults.push(...faultsByType(patched));
  return { faults, count: resources.length };
}

function manifests(place) {
  if (!statSync(place).isDirectory()) return [place];
  return readdirSync(place)
    .sort()
    .map((name) => join(place, name))
    .flatMap((path) => (statSync(path).isDirectory() || path.endsWith(".yaml") ? manifests(path) : []));
}

function documents(file) {
  return parseAllDocuments(readFileSync(file, "utf8")).map((document) => {
    const faults = document.errors.map((error) => `${file}: ${error.message}`);
    return { file, faults, object: faults.length === 0 ? document.toJS() : undefined };
  });
}

function isResource(object) {
  return typeof object?.apiVersion === "string" && typeof object?.kind === "string";
}

/** The settings of `damper serve` are in the same folder as the manifests; the binary checks them. */
function isSettings(file) {
  return file.endsWith("damper.yaml");
}

/** One object for each name in a folder: further ones are patches, in the order of the files. */
function withPatches(resources) {
  const patched = new Map();
  for (const { file, object } of resources) {
    const { apiVersion, kind, metadata } = object;
    const id = [dirname(file), apiVersion, kind, metadata?.namespace, metadata?.name].join(" ");
    const before = patched.get(id)?.object;
    patched.set(id, { file, object: before === undefined ? object : merged(before, object) });
  }
  return [...patched.values()];
}

/** Fields that tell the elements of a list apart in a patch; the first that an element has. */
const LIST_KEYS = ["mountPath", "containerPort", "ip", "port", "name"];

/** Merges a patch into a value as a cluster does, for the lists that patches here have. */
function merged(value, patch) {
  const key = Array.isArray(patch) && LIST_KEYS.find((key) => patch[0]?.[key] !== undefined);
  if (key && Array.isArray(value)) {
    const others = patch.filter((one) => !value.some((known) => known[key] === one[key]));
    const changed = value.map((known) => merged(known, patch.find((one) => one[key] === known[key])));
    return [...changed, ...others];
  }
  if (patch === undefined) return value;
  if (Array.isArray(patch) || typeof patch !== "object" || typeof value !== "object") return patch;
  const fields = Object.entries(patch).map(([name, inner]) => [name, merged(value[name], inner)]);
  return { ...value, ...Object.fromEntries(fields) };
}

/** Where the type of an object is: `kubernetes-models/apps/v1/Deployment`. */
function moduleOf({ apiVersion, kind }) {
  return `${SCHEMAS[apiVersion]}/${kind}`;
}

async function faultsByValidator({ file, object }) {
  const module = moduleOf(object);
  let model;
  try {
    model = (await import(module))[object.kind];
  } catch {
    return [`${file}: no schema for ${object.apiVersion} ${object.kind}`];
  }
  try {
    new model(object).validate();
    return [];
  } catch (error) {
    return [`${file}: ${object.kind}: ${error.message}`];
  }
}

/** All objects in one program of the compiler, each as a literal of its type. */
function faultsByType(resources) {
  const lines = [];
  const origins = [];
  const write = (text, resource) => {
    for (const line of text.split("\n")) {
      lines.push(line);
      origins.push(resource);
    }
  };
  resources.forEach((resource, index) => {
    const { object } = resource;
    write(`import type { I${object.kind} as Type${index} } from "${moduleOf(object)}";`, resource);
    write(`export const object${index}: Type${index} = ${JSON.stringify(object, null, 1)};`, resource);
  });
  const name = join(HERE, "manifests.ts");
  const options = {
    noEmit: true,
    strict: true,
    skipLibCheck: true,
    module: ts.ModuleKind.NodeNext,
    target: ts.ScriptTarget.ES2022,
    types: [],
  };
  const host = ts.createCompilerHost(options);
  const { getSourceFile, fileExists } = host;
  const source = ts.createSourceFile(name, lines.join("\n"), options.target);
  host.getSourceFile = (path, ...rest) => (path === name ? source : getSourceFile.call(host, path, ...rest));
  host.fileExists = (path) => path === name || fileExists.call(host, path);
  const program = ts.createProgram([name], options, host);
  return ts.getPreEmitDiagnostics(program).map((diagnostic) => {
    const line = source.getLineAndCharacterOfPosition(diagnostic.start ?? 0).line;
    const text = ts.flattenDiagnosticMessageText(diagnostic.messageText, " ");
    return `${origins[line].file}: ${origins[line].object.kind}: ${text} (at ${lines[line].trim()})`;
  });
}

/** Finds missing files and files that are not listed; Kustomize reports all other errors. */
function faultsOfKustomization({ file, object }) {
  const folder = dirname(file);
  const unknown = Object.keys(object).filter((key) => !KUSTOMIZATION_KEYS.includes(key));
  const generated = (object.configMapGenerator ?? []).flatMap(({ files }) => files ?? []);
  const named = [...(object.resources ?? []), ...generated];
  const missing = named.filter((path) => !statSync(join(folder, path), { throwIfNoEntry: false }));
  const forgotten = readdirSync(folder).filter(
    (name) => name.endsWith(".yaml") && name !== "kustomization.yaml" && !named.includes(name),
  );
  return [
    ...unknown.map((key) => `${file}: unknown key ${key}`),
    ...missing.map((path) => `${file}: ${path} is not there`),
    ...forgotten.map((path) => `${file}: ${path} is not among its resources`),
  ];
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { faults, count } = await faultsIn(process.argv.slice(2));
  faults.forEach((fault) => console.error(fault));
  if (faults.length > 0 || count === 0) process.exit(1);
  console.log(`${count} objects are as their schemas say`);
}
