// OpenTelemetry as its documents set it up: the default propagators, and no exporter.
const { registerInstrumentations } = require("@opentelemetry/instrumentation");
const { GrpcInstrumentation } = require("@opentelemetry/instrumentation-grpc");
const { NodeTracerProvider } = require("@opentelemetry/sdk-trace-node");

new NodeTracerProvider().register();
registerInstrumentations({ instrumentations: [new GrpcInstrumentation()] });
