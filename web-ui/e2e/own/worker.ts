// A scripted worker over the real protocol: it settles each delivery as the test decides, or keeps it.
import { create } from "@bufbuild/protobuf";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { createClient } from "@connectrpc/connect";
import { connect } from "node:http2";
import type { ClientHttp2Session } from "node:http2";
import { FromWorkerSchema, Jobs } from "../../gen/damper/v1/jobs_pb";
import type { Delivery, FromWorker, SettleSchema } from "../../gen/damper/v1/jobs_pb";
import { Code } from "../../gen/damper/v1/policy_pb";
import { Outbox, transportOver } from "./grpc";

type How = NonNullable<MessageInitShape<typeof SettleSchema>["how"]>;
// The end of a delivery; undefined = it stays in flight.
export type Handler = (delivery: Delivery) => How | undefined;

export const done: How = { case: "done", value: {} };
export const failed = (detail = "connection refused", code = Code.UNAVAILABLE): How => ({ case: "failed", value: { code, detail, took: { nanos: 12_000_000 } } });

const SLOTS = 100;
const ALIVE_EVERY_MS = 5_000;

export class Worker {
  // May be changed at any time.
  handler: Handler;
  readonly #session: ClientHttp2Session;
  readonly #outbox = new Outbox<FromWorker>();
  readonly #queue: string;
  readonly #alive: ReturnType<typeof setInterval>;

  constructor(url: string, instance: string, service: string, queue: string, handler: Handler) {
    this.handler = handler;
    this.#queue = queue;
    this.#session = connect(url);
    // A killed server closes its connections.
    this.#session.on("error", () => undefined);
    this.#send({ case: "hello", value: { identity: { service, cluster: "default", instance }, queues: [{ queue, more: SLOTS }] } });
    this.#alive = setInterval(() => { this.#send({ case: "alive", value: {} }); }, ALIVE_EVERY_MS);
    void this.#listen();
  }

  end(): void {
    clearInterval(this.#alive);
    this.#outbox.end();
    this.#session.destroy();
  }

  #send(kind: NonNullable<MessageInitShape<typeof FromWorkerSchema>["kind"]>): void {
    this.#outbox.put(create(FromWorkerSchema, { kind }));
  }

  async #listen(): Promise<void> {
    try {
      for await (const { kind } of createClient(Jobs, transportOver(this.#session)).work(this.#outbox)) {
        if (kind.case === "delivery") this.#handle(kind.value);
        if (kind.case === "settled") this.#send({ case: "credits", value: { queue: this.#queue, more: 1 } });
      }
    } catch {
      // Ended by the test or by its server.
    }
  }

  #handle(delivery: Delivery): void {
    const { lease } = delivery;
    this.#send({ case: "started", value: { leases: [lease] } });
    const how = this.handler(delivery);
    if (how !== undefined) this.#send({ case: "settle", value: { lease, how } });
  }
}
