"""A service that knows nothing of Damper or OpenTelemetry: grpcio, started by `opentelemetry-instrument`.

It sends test.Hop/Call to its callee and returns the status. Arguments: the address to listen on, the address of
the callee, and a service config of gRPC's client. It prints its address once it listens, and ends with its input.
"""

import json
import sys
from concurrent import futures

import grpc


def main(listen, callee, config=None):
    own, limit = ([("grpc.enable_retries", 0)], None) if config is None else options(json.loads(config))
    # Without serializers a message is its bytes.
    call = grpc.insecure_channel(callee, own).unary_unary("/test.Hop/Call")

    def relay(request, context):
        try:
            return call(request, timeout=limit)
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())

    methods = {"Call": grpc.unary_unary_rpc_method_handler(relay)}
    # A thread waits for each call.
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=200))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Hop", methods)])
    server.add_insecure_port(listen)
    server.start()
    print(listen, flush=True)
    sys.stdin.buffer.read()
    server.stop(None)


def options(config):
    """Returns a service config for a channel, and its time limit in seconds, which is for calls: in a service
    config grpcio 1.85 takes one of some seconds as exceeded at once."""
    limit = config["methodConfig"][0].pop("timeout", None)
    return [("grpc.service_config", json.dumps(config))], limit and float(limit.removesuffix("s"))


if __name__ == "__main__":
    main(*sys.argv[1:])
