// Samples of failed calls for a report, equal for the same route and report.
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Fate } from "../gen/damper/v1/distribution_pb";
import type { FailedAttemptSchema, FailedCallSchema } from "../gen/damper/v1/distribution_pb";
import { Code } from "../gen/damper/v1/policy_pb";

// A report has at most five.
const SAMPLES = 3;

const DETAILS = ["connection refused", "", ""] as const;

// Samples of `failed` calls for the report with this number, made now; `salt` separates routes and processes.
export function failedCalls({ fate, would, sends }: { fate: Fate; would: boolean; sends: number }, failed: number, salt: number, report: number,
  nowMs: number): MessageInitShape<typeof FailedCallSchema>[] {
  return Array.from({ length: Math.min(failed, SAMPLES) }, (_, at) => {
    const number = salt * 7919 + report * 31 + at * 13;
    const attempts = attemptsOf(number, sends, DETAILS[number % DETAILS.length] ?? "");
    const last = attempts.at(-1);
    const latency = (last?.at ?? 0) + (last?.took ?? 0);
    return {
      fate,
      would,
      code: Code.UNAVAILABLE,
      endedAt: { seconds: BigInt(Math.floor(nowMs / 1000) - (SAMPLES - at)), nanos: (number * 7_001_003) % 1_000_000_000 },
      latency: ms(latency),
      sends,
      traceId: hexOf(number),
      attempts: attempts.map(({ wire }) => wire),
    };
  });
}

interface Attempt {
  readonly at: number;
  readonly took: number;
  readonly wire: MessageInitShape<typeof FailedAttemptSchema>;
}

// One after the other, with a wait between.
function attemptsOf(number: number, sends: number, detail: string): Attempt[] {
  let from = 0;
  return Array.from({ length: sends }, (_, nr) => {
    const took = 4 + ((number * (nr + 3)) % 38);
    const attempt = { at: from, took, wire: { sentAfter: ms(from), took: ms(took), code: Code.UNAVAILABLE, detail } };
    from += took + 20 * (nr + 1) + (number % 9);
    return attempt;
  });
}

function ms(value: number): { seconds: bigint; nanos: number } {
  return { seconds: 0n, nanos: Math.round(value * 1e6) };
}

// A trace id: 32 hex digits, not all of them 0.
function hexOf(number: number): string {
  return Array.from({ length: 4 }, (_, at) => (Math.imul(number + 1, 2_654_435_761 + at * 97) >>> 0).toString(16).padStart(8, "0")).join("");
}
