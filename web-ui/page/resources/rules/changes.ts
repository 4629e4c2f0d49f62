// The changes of an edit, setting by setting, and the merge with a concurrent change.
import type { Draft } from "./draft";
import { allFields, SECTIONS } from "./form";

export interface Change {
  readonly path: string;
  readonly label: string;
  readonly before: string;
  readonly after: string;
}

// In the order of the form. Settings of a section that is off are ignored.
export function changes(before: Draft, after: Draft): Change[] {
  return paths().flatMap(({ path, label }) => {
    const [was, is] = [valueAt(before, path), valueAt(after, path)];
    return was === is ? [] : [{ path, label, before: valueText(path, was), after: valueText(path, is) }];
  });
}

export interface ThreeWay {
  readonly path: string;
  readonly label: string;
  readonly base: string;
  readonly theirs: string;
  readonly mine: string;
  // Both changed it, to different values.
  readonly contested: boolean;
}

export function threeWay(base: Draft, theirs: Draft, mine: Draft): ThreeWay[] {
  return paths().flatMap(({ path, label }) => {
    const [was, other, own] = [valueAt(base, path), valueAt(theirs, path), valueAt(mine, path)];
    if (was === other && was === own) return [];
    return [{ path, label, base: valueText(path, was), theirs: valueText(path, other), mine: valueText(path, own), contested: was !== other && was !== own && other !== own }];
  });
}

// Their version with my changes on top.
export function merged(base: Draft, theirs: Draft, mine: Draft): Draft {
  const result: Record<string, string> = { ...theirs };
  for (const { path } of paths()) {
    const own = mine[path];
    if (own === base[path]) continue;
    if (own === undefined) Reflect.deleteProperty(result, path);
    else result[path] = own;
  }
  return result;
}

// A choice with the label of the form.
function valueText(path: string, value: string): string {
  const choice = CHOICES.get(path)?.find((one) => one.value === value);
  return value === "" || choice === undefined ? value : choice.label;
}

const CHOICES = new Map(SECTIONS.flatMap(allFields).map(({ path, choices }) => [path, choices]));

function valueAt(draft: Draft, path: string): string {
  const section = SECTIONS.find((one) => one.path !== "" && path.startsWith(`${one.path}.`));
  if (section !== undefined && draft[section.path] === undefined) return "";
  const variants = section?.variants;
  const variant = variants?.of.find((one) => one.fields.some((field) => field.path === path));
  if (variants !== undefined && variant !== undefined && draft[variants.path] !== variant.name) return "";
  return draft[path]?.trim() ?? "";
}

function paths(): { path: string; label: string }[] {
  return SECTIONS.flatMap((section) => [
    ...(section.path === "" ? [] : [{ path: section.path, label: section.title }]),
    ...(section.variants ? [{ path: section.variants.path, label: section.variants.label }] : []),
    // "Ratio" occurs in several sections.
    ...allFields(section).map(({ path, label }) => ({ path, label: section.path === "" ? label : `${section.title}: ${label}` })),
  ]);
}
