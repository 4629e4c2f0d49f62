// Findings of an edit and of the stored version: new, resolved and unchanged ones. Pure.
import type { Finding } from "$wire/admin_pb";

export interface Compared {
  readonly caused: readonly Finding[];
  readonly resolved: readonly Finding[];
  readonly kept: readonly Finding[];
}

// A finding with another message is another finding: 27 attempts are more severe than 9.
const nameOf = ({ code, subject, field, message }: Finding) => [code, subject, field, message].join("\n");

export function compared(before: readonly Finding[], after: readonly Finding[]): Compared {
  const [had, has] = [before, after].map((findings) => new Set(findings.map(nameOf))) as [Set<string>, Set<string>];
  return {
    caused: after.filter((finding) => !had.has(nameOf(finding))),
    resolved: before.filter((finding) => !has.has(nameOf(finding))),
    kept: after.filter((finding) => had.has(nameOf(finding))),
  };
}
