// A scripted client over the real protocol: it acknowledges, rejects or ignores what it receives, and reports
// the test's statistics.
import { create } from "@bufbuild/protobuf";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { createClient } from "@connectrpc/connect";
import { connect } from "node:http2";
import type { ClientHttp2Session } from "node:http2";
import { ClientMessageSchema, Distribution, HelloSchema, ReportSchema, Source } from "../../gen/damper/v1/distribution_pb";
import type { ClientMessage, Refusal, ServerMessage } from "../../gen/damper/v1/distribution_pb";
import type { Mode } from "../../gen/damper/v1/policy_pb";
import { Outbox, transportOver } from "./grpc";

// As in feature.rs of damper-core.
export const FEATURES = ["base", "hedge", "budget", "stop_when", "circuit_breaker", "credit", "backoffs", "hold_unary",
  "call_id", "baggage", "guards", "kill_switch"];

// The answer to a message: undefined = none, else the rejected objects.
export type Answer = (message: ServerMessage) => readonly Pick<Refusal, "key" | "revision" | "reason">[] | undefined;

// Optional properties of a client.
export interface Properties {
  source?: Source;
  features?: string[];
  overrideMode?: Mode;
  serves?: boolean;
}

export const obedient: Answer = () => [];
export const silent: Answer = () => undefined;

export class Client {
  // May be changed at any time.
  answer: Answer;
  readonly #session: ClientHttp2Session;
  readonly #outbox = new Outbox<ClientMessage>();
  #waiting: ServerMessage[] = [];
  #flow: ReturnType<typeof setInterval> | undefined;

  constructor(url: string, identity: { service: string; cluster: string; instance: string }, properties: Properties = {}, answer: Answer = obedient) {
    this.answer = answer;
    this.#session = connect(url);
    // A killed server closes its connections.
    this.#session.on("error", () => undefined);
    const hello = create(HelloSchema, { identity, sdkVersion: "0.1.0", features: FEATURES, source: Source.LIVE, ...properties });
    this.#outbox.put(create(ClientMessageSchema, { kind: { case: "hello", value: hello } }));
    void this.#listen();
  }

  // Reports once per second with the current second, as a process under load does.
  flow(report: (second: bigint) => MessageInitShape<typeof ReportSchema>): void {
    const since = Date.now();
    const tell = () => { this.report(report(BigInt(Math.round((Date.now() - since) / 1000)))); };
    tell();
    this.#flow = setInterval(tell, 1_000);
  }

  // Counters since the process started, as in a report of the SDK.
  report(report: MessageInitShape<typeof ReportSchema>): void {
    const full = create(ReportSchema, { source: Source.LIVE, ...report });
    this.#outbox.put(create(ClientMessageSchema, { kind: { case: "report", value: full } }));
  }

  // Acknowledges the messages that it ignored.
  catchUp(): void {
    this.answer = obedient;
    for (const message of this.#waiting.splice(0)) this.#acknowledge(message);
  }

  end(): void {
    clearInterval(this.#flow);
    this.#outbox.end();
    this.#session.destroy();
  }

  async #listen(): Promise<void> {
    try {
      for await (const message of createClient(Distribution, transportOver(this.#session)).subscribe(this.#outbox)) this.#acknowledge(message);
    } catch {
      // Ended by the test or by its server.
    }
  }

  #acknowledge(message: ServerMessage): void {
    if (message.nonce === 0n) return;
    const refused = this.answer(message);
    if (refused === undefined) {
      this.#waiting.push(message);
      return;
    }
    const { nonce, revision } = message;
    const ack = { nonce, revision, refused: refused.map(({ key, revision, reason }) => ({ ...(key && { key }), revision, reason })) };
    this.#outbox.put(create(ClientMessageSchema, { kind: { case: "ack", value: ack } }));
  }
}
