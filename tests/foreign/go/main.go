// A service that knows nothing of Damper: grpc-go with OpenTelemetry's propagators.
//
// It sends test.Hop/Call to its callee with the request's context and returns the status. It prints its
// address once it listens, and ends with its input.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The method of every hop of the tests; its messages are one string.
const method = "/test.Hop/Call"

func hop(callee *grpc.ClientConn) *grpc.ServiceDesc {
	call := func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		request, answer := new(wrapperspb.StringValue), new(wrapperspb.StringValue)
		if err := decode(request); err != nil {
			return nil, err
		}
		return answer, callee.Invoke(ctx, method, request, answer)
	}
	return &grpc.ServiceDesc{
		ServiceName: "test.Hop",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Call", Handler: call}},
	}
}

func main() {
	callee := flag.String("callee", "", "address of the callee")
	listen := flag.String("listen", "127.0.0.1:0", "address to listen on")
	config := flag.String("service-config", "", "service config of gRPC's client, in JSON")
	propagate := flag.Bool("propagate", true, "set OpenTelemetry's propagators")
	flag.Parse()
	if *propagate {
		otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(
			propagation.TraceContext{}, propagation.Baggage{}))
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStatsHandler(otelgrpc.NewClientHandler()),
	}
	if *config != "" {
		options = append(options, grpc.WithDefaultServiceConfig(*config))
	}
	channel, err := grpc.NewClient("passthrough:///"+*callee, options...)
	if err != nil {
		log.Fatalf("callee %s: %v", *callee, err)
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatalf("listen on %s: %v", *listen, err)
	}
	server := grpc.NewServer(grpc.StatsHandler(otelgrpc.NewServerHandler()))
	server.RegisterService(hop(channel), nil)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		server.Stop()
	}()
	fmt.Println(listener.Addr())
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
}
