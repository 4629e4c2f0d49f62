// The form of a policy: its settings, their order, and how each is entered.
//
// Ranges and defaults come from the .proto files (`$gen/comments`), and the server validates. Paths are those
// of the message, as in a manifest: "retry.max_attempts".
import { ScalarType } from "@bufbuild/protobuf";
import { comments } from "$gen/comments";
import { file_damper_v1_guards } from "$wire/guards_pb";
import { Code, file_damper_v1_policy, Jitter, Mode, OverMax, RetryBreakerMode } from "$wire/policy_pb";
import { file_damper_v1_queues } from "$wire/queues_pb";

// The texts of an edited policy, by path; see draft.ts.
export type Draft = Readonly<Record<string, string>>;

export type Kind = "duration" | "durations" | "number" | "switch" | "choice" | "codes" | "list" | "bytes" | "text";

export interface Choice {
  // In proto3 JSON; empty = not set.
  readonly value: string;
  readonly label: string;
}

export interface Field {
  readonly path: string;
  readonly label: string;
  readonly kind: Kind;
  // Range, default and meaning, from the wire's comment.
  readonly help: string;
  readonly choices?: readonly Choice[];
  // The largest value of an integer; absent = a fraction.
  readonly largest?: bigint;
  // Whether it has an effect with the other settings; absent = always.
  readonly counts?: (draft: Draft) => boolean;
}

// One form of a setting with its own fields.
export interface Variant {
  readonly name: string;
  readonly label: string;
  readonly fields: readonly Field[];
}

export interface Variants {
  readonly path: string;
  readonly label: string;
  readonly help: string;
  // The label if none is selected.
  readonly none: string;
  readonly of: readonly Variant[];
}

export interface Section {
  // Empty = the policy itself, always present.
  readonly path: string;
  readonly title: string;
  readonly help: string;
  // It applies with defaults if the rule does not set it.
  readonly isDefault?: boolean;
  readonly fields: readonly Field[];
  readonly variants?: Variants;
}

// The wire's comment on a setting. An absent value is an empty field here.
export function help(name: string): string {
  return (comments[`damper.v1.${name}`] ?? "").replaceAll(/(Absent|Empty) = /g, "Empty: ").replaceAll(/(absent|empty) = /g, "empty: ");
}

// Help of fields without a comment of their own.
const OF_KIND: Record<string, string> = { over_max: help("OverMax") };

export function field(message: string, path: string, label: string, kind: Kind, choices?: readonly Choice[]): Field {
  const name = path.slice(path.lastIndexOf(".") + 1);
  const largest = kind === "number" || kind === "bytes" ? largestOf(message, name) : undefined;
  return {
    path, label, kind, help: help(`${message}.${name}`) || OF_KIND[name] || "",
    ...(choices && { choices }), ...(largest !== undefined && { largest }),
  };
}

function only(counts: (draft: Draft) => boolean, of: Field): Field {
  return { ...of, counts };
}

const MESSAGES = [...file_damper_v1_policy.messages, ...file_damper_v1_guards.messages, ...file_damper_v1_queues.messages];
const LARGEST: Partial<Record<ScalarType, bigint>> = { [ScalarType.UINT32]: (1n << 32n) - 1n, [ScalarType.UINT64]: (1n << 64n) - 1n };

// From the descriptor, so that no integer field is missed.
function largestOf(message: string, name: string): bigint | undefined {
  const scalar = MESSAGES.find((one) => one.name === message)?.fields.find((one) => one.name === name)?.scalar;
  return scalar === undefined ? undefined : LARGEST[scalar];
}

// The names of an enum as choices; the empty value means "not set".
export function choices(names: Record<number, string>, prefix: string, unset: string): Choice[] {
  const values = Object.values(names).filter((name): name is string => typeof name === "string");
  return values.map((name) =>
    name === "UNSPECIFIED"
      ? { value: "", label: unset }
      : { value: prefix + name, label: name.toLowerCase().replaceAll("_", " ") },
  );
}

const JITTER = choices(Jitter, "JITTER_", "default for this backoff");
const OVER_MAX = choices(OverMax, "OVER_MAX_", "default: cap");
const YES_NO: readonly Choice[] = [{ value: "", label: "default: yes" }, { value: "true", label: "yes" }, { value: "false", label: "no" }];

export const CODES: readonly string[] = Object.values(Code).filter((name): name is string => typeof name === "string" && name !== "OK");

function jitter(message: string, path: string): Field[] {
  return [
    field(message, `${path}.jitter`, "Jitter", "choice", JITTER),
    field(message, `${path}.jitter_share`, "Jitter share", "number"),
  ];
}

// The backoff of a rule, or below `path` of another message.
export function backoff(path: string, about: string): Variants {
  return { path, label: "Backoff", help: about, none: "default", of: [
    { name: "none", label: "no delay", fields: [] },
    {
      name: "fixed",
      label: "fixed",
      fields: [field("FixedBackoff", `${path}.fixed.delay`, "Delay", "duration"), ...jitter("FixedBackoff", `${path}.fixed`)],
    },
    {
      name: "exponential",
      label: "exponential",
      fields: [
        field("ExponentialBackoff", `${path}.exponential.base`, "Base", "duration"),
        field("ExponentialBackoff", `${path}.exponential.multiplier`, "Multiplier", "number"),
        field("ExponentialBackoff", `${path}.exponential.max`, "Longest", "duration"),
        ...jitter("ExponentialBackoff", `${path}.exponential`),
        field("ExponentialBackoff", `${path}.exponential.over_max`, "Beyond the maximum", "choice", OVER_MAX),
      ],
    },
    {
      name: "random",
      label: "random",
      fields: [
        field("RandomBackoff", `${path}.random.min`, "Shortest", "duration"),
        field("RandomBackoff", `${path}.random.max`, "Longest", "duration"),
        ...jitter("RandomBackoff", `${path}.random`),
      ],
    },
    {
      name: "incrementing",
      label: "incrementing",
      fields: [
        field("IncrementingBackoff", `${path}.incrementing.initial`, "First", "duration"),
        field("IncrementingBackoff", `${path}.incrementing.step`, "Step", "duration"),
        field("IncrementingBackoff", `${path}.incrementing.max`, "Longest", "duration"),
        ...jitter("IncrementingBackoff", `${path}.incrementing`),
        field("IncrementingBackoff", `${path}.incrementing.over_max`, "Beyond the maximum", "choice", OVER_MAX),
      ],
    },
    {
      name: "fibonacci",
      label: "fibonacci",
      fields: [
        field("FibonacciBackoff", `${path}.fibonacci.unit`, "Unit", "duration"),
        field("FibonacciBackoff", `${path}.fibonacci.max`, "Longest", "duration"),
        ...jitter("FibonacciBackoff", `${path}.fibonacci`),
        field("FibonacciBackoff", `${path}.fibonacci.over_max`, "Beyond the maximum", "choice", OVER_MAX),
      ],
    },
    {
      name: "custom",
      label: "list of delays",
      fields: [field("CustomBackoff", `${path}.custom.delays`, "Delays", "durations"), ...jitter("CustomBackoff", `${path}.custom`)],
    },
  ] };
}

const DELAY: Variants = {
  path: "hedge.delay",
  label: "Hedge after",
  help: help("HedgeDelay"),
  none: "not set",
  of: [
    { name: "fixed", label: "a fixed time", fields: [field("HedgeDelay", "hedge.delay.fixed", "Time", "duration")] },
    {
      name: "percentile",
      label: "a percentile of latency",
      fields: [
        field("PercentileDelay", "hedge.delay.percentile.at", "Percentile", "number"),
        field("PercentileDelay", "hedge.delay.percentile.min", "At least", "duration"),
        field("PercentileDelay", "hedge.delay.percentile.max", "At most", "duration"),
      ],
    },
  ],
};

// The stop conditions of a rule, or below `path` of another message. `what` is slower than the percentile.
export function stopWhen(path: string, what: string): Field[] {
  return [
    field("StopWhen", `${path}.latency_above_percentile`, `${what} is slower than the percentile`, "number"),
    field("StopWhen", `${path}.success_rate_below`, "Success rate below (%)", "number"),
    field("StopWhen", `${path}.min_samples`, "Minimum attempts", "number"),
  ];
}

const BREAKER_MODE = "retry_breaker.mode";
// Credit is the default mode.
const isRatioMode = (draft: Draft) => draft[BREAKER_MODE] === `RETRY_BREAKER_MODE_${RetryBreakerMode[RetryBreakerMode.RATIO]}`;
// Hedges use the ratio in either mode.
const hasRatio = (draft: Draft) => isRatioMode(draft) || draft["hedge"] !== undefined;

export const SECTIONS: readonly Section[] = [
  {
    path: "",
    title: "Call",
    help: "",
    fields: [
      field("Policy", "mode", "Mode", "choice", choices(Mode, "MODE_", "choose one")),
      field("Policy", "timeout", "Timeout", "duration"),
    ],
  },
  {
    path: "retry",
    title: "Retries",
    help: "Off: failed calls are not retried.",
    fields: [
      field("Retry", "retry.max_attempts", "Max attempts", "number"),
      field("Retry", "retry.per_attempt_timeout", "Timeout per attempt", "duration"),
      field("Retry", "retry.max_duration", "No retries after", "duration"),
      field("Retry", "retry.codes", "Codes to retry", "codes"),
    ],
    variants: backoff("retry.backoff", help("Retry.backoff")),
  },
  {
    path: "retry_breaker",
    title: "Retry breaker",
    help: "Stops retries while the callee fails. On with default settings. Select to change them, or to switch it off.",
    isDefault: true,
    fields: [
      field("RetryBreaker", "retry_breaker.enabled", "On", "choice", YES_NO),
      field("RetryBreaker", BREAKER_MODE, "Decides by", "choice", choices(RetryBreakerMode, "RETRY_BREAKER_MODE_", "default: credit")),
      only((draft) => !isRatioMode(draft), field("RetryBreaker", "retry_breaker.earn", "Earned per success", "number")),
      only(hasRatio, field("RetryBreaker", "retry_breaker.ratio", "Ratio", "number")),
      field("RetryBreaker", "retry_breaker.buckets", "Buckets", "number"),
      field("RetryBreaker", "retry_breaker.bucket_length", "Bucket length", "duration"),
      only(hasRatio, field("RetryBreaker", "retry_breaker.min_failures", "Retries saved above the ratio", "number")),
      only(hasRatio, field("RetryBreaker", "retry_breaker.min_samples", "Minimum attempts", "number")),
      field("RetryBreaker", "retry_breaker.max_ratio", "Ratio never exceeded", "number"),
    ],
  },
  {
    path: "budget",
    title: "Budget",
    help: "Off: retries and hedges are not limited to a share of the calls.",
    fields: [
      field("Budget", "budget.ratio", "Ratio", "number"),
      field("Budget", "budget.min_per_second", "Minimum per second", "number"),
    ],
  },
  {
    path: "hedge",
    title: "Hedging",
    help: "Off: slow calls are not hedged.",
    fields: [field("Hedge", "hedge.max_hedges", "Max hedges", "number")],
    variants: DELAY,
  },
  {
    path: "circuit_breaker",
    title: "Circuit breaker",
    help: "Off: calls are sent however many fail.",
    fields: [
      field("CircuitBreaker", "circuit_breaker.consecutive_failures", "Consecutive failures", "number"),
      field("CircuitBreaker", "circuit_breaker.failure_ratio", "Failure ratio", "number"),
      field("CircuitBreaker", "circuit_breaker.min_calls", "Minimum calls", "number"),
      field("CircuitBreaker", "circuit_breaker.open_for", "Open for", "duration"),
      field("CircuitBreaker", "circuit_breaker.probes", "Probes", "number"),
      field("CircuitBreaker", "circuit_breaker.slow_call", "Slow call threshold", "duration"),
    ],
  },
  {
    path: "stop_when",
    title: "Stop retrying when",
    help: "Off: retries depend neither on latency nor on the success rate.",
    fields: stopWhen("stop_when", "The call"),
  },
  {
    path: "chain",
    title: "Chain flags",
    help: "Headers that prevent retries of retries along a chain of services. Both flags are honoured by default. Select to ignore one.",
    isDefault: true,
    fields: [
      field("Chain", "chain.ignore_retry_flag", "Ignore damper-retry", "switch"),
      field("Chain", "chain.ignore_no_more_retry", "Ignore damper-no-more-retry", "switch"),
      field("Chain", "chain.propagate_baggage", "Also send as baggage", "switch"),
    ],
  },
  {
    path: "",
    title: "Request",
    help: "",
    fields: [
      field("Policy", "replay_limit_bytes", "Bytes kept for a retry", "number"),
      field("Policy", "hold_unary", "Hold unary responses", "switch"),
      field("Policy", "call_id", "Send a call id", "switch"),
    ],
  },
];

// All fields, including those of variants.
export function allFields(section: Section): readonly Field[] {
  return [...section.fields, ...(section.variants?.of.flatMap(({ fields }) => fields) ?? [])];
}

// The fields to show: those with an effect, and those that are set.
export function shownFields({ fields }: Section, draft: Draft, before: Draft): readonly Field[] {
  return fields.filter(({ path, counts }) => counts?.(draft) !== false || draft[path] !== undefined || before[path] !== undefined);
}

// Placeholder of an empty field, from the wire's comment.
export function meaningOfEmpty({ help: text }: Pick<Field, "help">): string {
  const found = /(default [^.;,]+(?:\.\d+)?|empty: [^.;,]+)/i.exec(text);
  return found?.[0]?.replace(/^empty: /i, "") ?? "";
}
