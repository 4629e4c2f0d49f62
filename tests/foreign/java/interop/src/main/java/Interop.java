import io.grpc.ManagedChannelBuilder;
import io.grpc.Server;
import io.grpc.ServerInterceptors;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.testing.integration.AbstractInteropTest;
import io.grpc.testing.integration.TestServiceImpl;
import java.net.InetSocketAddress;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;

/**
 * The interop cases of gRPC, as grpc-java publishes them: its server, or its client against any server.
 *
 * <p>Arguments: "server" and an address, or "client", the address of the server, and cases. The server prints its
 * address once it listens, and ends with its input. The client prints the name of each case that has passed; the first
 * that fails ends it.
 */
public final class Interop extends AbstractInteropTest {
  private interface Case {
    void run(Interop client) throws Exception;
  }

  private static final Map<String, Case> CASES =
      Map.ofEntries(
          Map.entry("empty_unary", Interop::emptyUnary),
          Map.entry("large_unary", Interop::largeUnary),
          Map.entry("client_streaming", Interop::clientStreaming),
          Map.entry("server_streaming", Interop::serverStreaming),
          Map.entry("ping_pong", Interop::pingPong),
          Map.entry("empty_stream", Interop::emptyStream),
          Map.entry("cancel_after_begin", Interop::cancelAfterBegin),
          Map.entry("cancel_after_first_response", Interop::cancelAfterFirstResponse),
          Map.entry("timeout_on_sleeping_server", Interop::timeoutOnSleepingServer),
          Map.entry("custom_metadata", Interop::customMetadata),
          Map.entry("status_code_and_message", Interop::statusCodeAndMessage),
          Map.entry("special_status_message", Interop::specialStatusMessage),
          Map.entry("unimplemented_method", Interop::unimplementedMethod),
          Map.entry("unimplemented_service", Interop::unimplementedService),
          Map.entry("client_compressed_unary", client -> client.clientCompressedUnary(false)),
          Map.entry("server_compressed_unary", Interop::serverCompressedUnary),
          Map.entry("client_compressed_streaming", client -> client.clientCompressedStreaming(false)),
          Map.entry("server_compressed_streaming", Interop::serverCompressedStreaming));

  private final InetSocketAddress server;

  private Interop(InetSocketAddress server) {
    this.server = server;
  }

  public static void main(String[] arguments) throws Exception {
    if (arguments[0].equals("server")) {
      serve(arguments[1]);
      return;
    }
    for (int at = 2; at < arguments.length; at++) {
      Interop client = new Interop(address(arguments[1]));
      client.setUp();
      CASES.get(arguments[at]).run(client);
      client.tearDown();
      System.out.println(arguments[at]);
    }
    System.exit(0);
  }

  private static void serve(String listen) throws Exception {
    ScheduledExecutorService executor = Executors.newScheduledThreadPool(2);
    Server server =
        NettyServerBuilder.forAddress(address(listen))
            .maxInboundMessageSize(MAX_MESSAGE_SIZE)
            .addService(ServerInterceptors.intercept(new TestServiceImpl(executor), TestServiceImpl.interceptors()))
            .build()
            .start();
    System.out.println(listen);
    while (System.in.read() >= 0) {}
    server.shutdownNow();
    executor.shutdownNow();
  }

  @Override
  protected ManagedChannelBuilder<?> createChannelBuilder() {
    return NettyChannelBuilder.forAddress(server)
        .usePlaintext()
        .flowControlWindow(TEST_FLOW_CONTROL_WINDOW)
        .maxInboundMessageSize(MAX_MESSAGE_SIZE)
        .disableRetry();
  }

  @Override
  protected boolean metricsExpected() {
    return false;
  }

  private static InetSocketAddress address(String text) {
    int colon = text.lastIndexOf(':');
    return new InetSocketAddress(text.substring(0, colon), Integer.parseInt(text.substring(colon + 1)));
  }
}
