import com.google.protobuf.StringValue;
import io.grpc.CallOptions;
import io.grpc.ManagedChannel;
import io.grpc.MethodDescriptor;
import io.grpc.Server;
import io.grpc.ServerServiceDefinition;
import io.grpc.Status;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.ServerCalls;
import io.grpc.stub.StreamObserver;
import java.net.InetSocketAddress;
import java.util.List;
import java.util.Map;

/**
 * A service that knows nothing of Damper: grpc-java under OpenTelemetry's agent.
 *
 * <p>It sends test.Hop/Call to its callee and returns the status. Arguments: the address to listen on, the address of
 * the callee, and "own-retries" for retries of gRPC's client. It prints its address once it listens, and ends with its
 * input.
 */
final class Service {
  private static final MethodDescriptor<StringValue, StringValue> CALL =
      MethodDescriptor.<StringValue, StringValue>newBuilder()
          .setType(MethodDescriptor.MethodType.UNARY)
          .setFullMethodName("test.Hop/Call")
          .setRequestMarshaller(ProtoUtils.marshaller(StringValue.getDefaultInstance()))
          .setResponseMarshaller(ProtoUtils.marshaller(StringValue.getDefaultInstance()))
          .build();

  public static void main(String[] arguments) throws Exception {
    NettyChannelBuilder builder = NettyChannelBuilder.forAddress(address(arguments[1])).usePlaintext();
    if (arguments.length > 2 && arguments[2].equals("own-retries")) {
      builder.defaultServiceConfig(retries());
    } else {
      builder.disableRetry();
    }
    ManagedChannel callee = builder.build();
    ServerServiceDefinition hop =
        ServerServiceDefinition.builder("test.Hop")
            .addMethod(CALL, ServerCalls.asyncUnaryCall((request, answer) -> relay(callee, request, answer)))
            .build();
    Server server = NettyServerBuilder.forAddress(address(arguments[0])).addService(hop).build().start();
    System.out.println(arguments[0]);
    while (System.in.read() >= 0) {}
    server.shutdownNow();
    callee.shutdownNow();
  }

  private static void relay(ManagedChannel callee, StringValue request, StreamObserver<StringValue> answer) {
    try {
      answer.onNext(ClientCalls.blockingUnaryCall(callee, CALL, CallOptions.DEFAULT, request));
      answer.onCompleted();
    } catch (RuntimeException failed) {
      answer.onError(Status.fromThrowable(failed).asRuntimeException());
    }
  }

  private static InetSocketAddress address(String text) {
    int colon = text.lastIndexOf(':');
    return new InetSocketAddress(text.substring(0, colon), Integer.parseInt(text.substring(colon + 1)));
  }

  /** Three attempts, as many a team sets them in the client itself. */
  private static Map<String, ?> retries() {
    Map<String, ?> policy =
        Map.of(
            "maxAttempts", 3.0,
            "initialBackoff", "0.001s",
            "maxBackoff", "0.001s",
            "backoffMultiplier", 1.0,
            "retryableStatusCodes", List.of("UNAVAILABLE"));
    return Map.of("methodConfig", List.of(Map.of("name", List.of(Map.of()), "retryPolicy", policy)));
  }
}
