// Requests to the server, each with a timeout, and the text of its errors.
import { createClient, Code, ConnectError } from "@connectrpc/connect";
import type { CallOptions, Transport } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import type { DescMessage, MessageShape } from "@bufbuild/protobuf";
import { BadRequestSchema, ErrorInfoSchema } from "$gen/google/rpc/error_details_pb";
import { Fleet } from "$wire/fleet_pb";
import { Guards, GuardSchema } from "$wire/guards_pb";
import { History } from "$wire/history_pb";
import { Kills, KillSwitchSchema } from "$wire/kills_pb";
import { QueueSchema, Queues } from "$wire/queues_pb";
import { Rules, RuleSchema } from "$wire/rules_pb";

// The server itself gives up after 30 s.
const ANSWER_WITHIN_MS = 12_000;

export type Api = ReturnType<typeof api>;

export function overHttp(): Api {
  return api(createGrpcWebTransport({ baseUrl: location.origin, defaultTimeoutMs: ANSWER_WITHIN_MS }));
}

export function api(transport: Transport) {
  return {
    rules: createClient(Rules, transport),
    guards: createClient(Guards, transport),
    kills: createClient(Kills, transport),
    queues: createClient(Queues, transport),
    fleet: createClient(Fleet, transport),
    history: createClient(History, transport),
  };
}

// For streams: no timeout.
export const UNLIMITED: CallOptions = { timeoutMs: 0 };

// An error of a request.
export interface Problem {
  readonly code: Code;
  readonly text: string;
  // The server's messages by the path of the field.
  readonly fields: ReadonlyMap<string, string>;
  // ErrorInfo's reason: ROLE, SCOPE, NO_LONGER_KEPT, ...; empty = none.
  readonly reason: string;
  readonly error: ConnectError;
}

export function problemOf(thrown: unknown): Problem {
  const error = ConnectError.from(thrown);
  const fields = new Map<string, string>();
  for (const { fieldViolations } of detail(error, BadRequestSchema)) {
    for (const { field, description } of fieldViolations) {
      const before = fields.get(field);
      fields.set(field, before === undefined ? description : `${before}; ${description}`);
    }
  }
  const reason = detail(error, ErrorInfoSchema)[0]?.reason ?? "";
  return { code: error.code, text: words(error), fields, reason, error };
}

// The current object of a write that expected another revision.
export function currentRule(problem: Problem) {
  return detail(problem.error, RuleSchema)[0];
}

export function currentGuard(problem: Problem) {
  return detail(problem.error, GuardSchema)[0];
}

export function currentQueue(problem: Problem) {
  return detail(problem.error, QueueSchema)[0];
}

export function currentKill(problem: Problem) {
  return detail(problem.error, KillSwitchSchema)[0];
}

function detail<Desc extends DescMessage>(error: ConnectError, schema: Desc): MessageShape<Desc>[] {
  return error.findDetails(schema);
}

function words(error: ConnectError): string {
  switch (error.code) {
    case Code.Unknown:
      // Browsers report only that fetch failed.
      return error.cause instanceof TypeError ? "The server is not responding." : error.rawMessage;
    case Code.DeadlineExceeded:
      return "The server did not answer in time.";
    case Code.Unavailable:
      return `Unavailable: ${error.rawMessage}`;
    case Code.PermissionDenied:
      return `Not allowed: ${error.rawMessage}`;
    default:
      return error.rawMessage;
  }
}
