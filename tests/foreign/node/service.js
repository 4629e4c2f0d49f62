// A service that knows nothing of Damper: grpc-js, and OpenTelemetry by `--require ./tracing.js`.
//
// It sends test.Hop/Call to its callee and returns the status. The answer "slow" it returns late. Arguments: the
// address to listen on, the address of the callee, and a service config of gRPC's client. It prints its address
// once it listens, and ends with its input.
const grpc = require("@grpc/grpc-js");

const [listen, callee, config] = process.argv.slice(2);
const LATE_MS = 3000;
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
const options = config ? { "grpc.service_config": config } : { "grpc.enable_retries": 0 };
const Hop = grpc.makeGenericClientConstructor(hop, "Hop");
const client = new Hop(callee, grpc.credentials.createInsecure(), options);

const server = new grpc.Server();
server.addService(hop, {
  call: (call, answer) =>
    client.call(call.request, (error, message) => {
      if (error) answer({ code: error.code, details: error.details });
      else if (message.includes("slow")) setTimeout(answer, LATE_MS, null, message);
      else answer(null, message);
    }),
});
server.bindAsync(listen, grpc.ServerCredentials.createInsecure(), (error) => {
  if (error) throw error;
  console.log(listen);
});
process.stdin.on("close", () => process.exit(0)).resume();
