// A service that knows nothing of Damper: grpc-js, and OpenTelemetry by `--require ./tracing.js`.
//
// It sends test.Hop/Call to its callee and returns the status. Arguments: the address to listen on, the address
// of the callee, and "own-retries" for retries of gRPC's client. It prints its address once it listens, and ends
// with its input.
const grpc = require("@grpc/grpc-js");

const [listen, callee, retries] = process.argv.slice(2);
const bytes = (message) => message;
const hop = {
  call: {
    path: "/test.Hop/Call",
    requestStream: false,
    responseStream: false,
    requestSerialize: bytes,
    requestDeserialize: bytes,
    responseSerialize: bytes,
    responseDeserialize: bytes,
  },
};
const policy = {
  maxAttempts: 3,
  initialBackoff: "0.001s",
  maxBackoff: "0.001s",
  backoffMultiplier: 1,
  retryableStatusCodes: ["UNAVAILABLE"],
};
const config = { loadBalancingConfig: [], methodConfig: [{ name: [{}], retryPolicy: policy }] };
const options = retries === "own-retries"
  ? { "grpc.service_config": JSON.stringify(config) }
  : { "grpc.enable_retries": 0 };
const Hop = grpc.makeGenericClientConstructor(hop, "Hop");
const client = new Hop(callee, grpc.credentials.createInsecure(), options);

const server = new grpc.Server();
server.addService(hop, {
  call: (call, answer) =>
    client.call(call.request, (error, message) =>
      error ? answer({ code: error.code, details: error.details }) : answer(null, message)),
});
server.bindAsync(listen, grpc.ServerCredentials.createInsecure(), (error) => {
  if (error) throw error;
  console.log(listen);
});
process.stdin.on("close", () => process.exit(0)).resume();
