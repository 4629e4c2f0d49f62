import com.google.gson.Gson;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/**
 * Gives each service config in the files of its arguments to a channel of grpc-java, and fails if the channel refuses
 * one. No connection is made.
 */
final class ServiceConfig {
  public static void main(String[] files) throws Exception {
    boolean refused = false;
    for (String file : files) {
      Map<String, ?> config = new Gson().fromJson(Files.readString(Path.of(file)), Map.class);
      try {
        NettyChannelBuilder.forTarget("dns:///callee:1").defaultServiceConfig(config).build().shutdownNow();
      } catch (RuntimeException reason) {
        System.err.println(file + ": " + reason.getMessage().lines().findFirst().orElse(""));
        refused = true;
      }
    }
    System.exit(refused ? 1 : 0);
  }
}
