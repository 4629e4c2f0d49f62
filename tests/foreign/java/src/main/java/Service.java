import com.google.gson.Gson;
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
import java.util.Map;

/**
 * A service that knows nothing of Damper: grpc-java under OpenTelemetry's agent.
 *
 * <p>It sends test.Hop/Call to its callee and returns the status. Arguments: the address to listen on, the address of
 * the callee, and a service config of gRPC's client. It prints its address once it listens, and ends with its input.
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
    if (arguments.length > 2) {
      Map<String, ?> config = new Gson().fromJson(arguments[2], Map.class);
      builder.defaultServiceConfig(config);
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
}
