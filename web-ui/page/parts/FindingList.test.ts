import { create } from "@bufbuild/protobuf";
import { render, screen } from "@testing-library/svelte";
import { expect, test } from "vitest";
import { FindingSchema, Severity } from "$wire/admin_pb";
import FindingList from "./FindingList.svelte";

test("what is to be typed stands as code, without its marks", () => {
  const finding = create(FindingSchema, {
    severity: Severity.DANGER, code: "retry_storm", subject: "a b c d", message: "storms", remedy: "Stop it with `damper kill`, then look.",
  });
  render(FindingList, { findings: [finding] });
  expect(screen.getByText("damper kill").tagName).toBe("CODE");
  expect(screen.getByText(/^Stop it with/).textContent).toBe("Stop it with damper kill, then look. retry_storm");
});
