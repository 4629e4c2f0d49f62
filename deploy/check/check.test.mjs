// The checker rejects what a cluster would reject, and what a cluster would silently drop.
import assert from "node:assert/strict";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import test from "node:test";
import { fileURLToPath } from "node:url";

import { faultsIn } from "./check.mjs";

const MANIFESTS = join(dirname(fileURLToPath(import.meta.url)), "../kubernetes");

/** The faults of the manifests after one change to one of them. */
async function faultsAfter(path, from, to) {
  const folder = mkdtempSync(join(tmpdir(), "damper-check-"));
  try {
    cpSync(MANIFESTS, folder, { recursive: true });
    const file = join(folder, path);
    const text = readFileSync(file, "utf8");
    assert.ok(text.includes(from), `${path} has ${from}`);
    writeFileSync(file, text.replace(from, to));
    return (await faultsIn([folder])).faults;
  } finally {
    rmSync(folder, { recursive: true });
  }
}

test("the manifests are as their schemas say", async () => {
  const { faults, count } = await faultsIn([MANIFESTS]);
  assert.deepEqual(faults, []);
  assert.ok(count >= 12, `${count} objects`);
});

const CHANGES = {
  "a field that does not exist": ["etcd/deployment.yaml", "readOnlyRootFilesystem:", "readOnlyRootFileSystem:"],
  "a field in the wrong place": ["etcd/deployment.yaml", "  replicas: 2\n", "  maxSurge: 1\n"],
  "a value of the wrong type": ["etcd/deployment.yaml", "containerPort: 7600", 'containerPort: "7600"'],
  "a word that is none of those allowed": ["base/network-policy.yaml", "protocol: TCP", "protocol: HTTP"],
  "a required field that is missing": ["etcd/deployment.yaml", "        - name: damper\n", "        - tty: false\n"],
  "a kind that does not exist": ["etcd/disruption-budget.yaml", "kind: PodDisruptionBudget", "kind: PodBudget"],
  "a version that is gone": ["etcd/disruption-budget.yaml", "policy/v1", "policy/v1beta1"],
  "a field of a patch that does not exist": ["examples/sidecar/proxy.yaml", "restartPolicy:", "restartPolcy:"],
  "a patch of the wrong object": ["examples/sidecar/token.yaml", "  name: checkout\n", "  name: chekout\n"],
  "text that is no YAML": ["base/service.yaml", "spec:\n", "spec: [\n"],
  "a file that a kustomization names and that is not there": ["sled/kustomization.yaml", "stateful-set", "statefulset"],
};
for (const [what, change] of Object.entries(CHANGES)) {
  test(`rejected: ${what}`, async () => {
    const faults = await faultsAfter(...change);
    assert.notDeepEqual(faults, []);
    assert.ok(faults.every((fault) => fault.includes(dirname(change[0]))), faults.join("\n"));
  });
}
