// The interop cases of gRPC, as grpc-go publishes them: its server, or its client against any server.
//
// The server prints its address once it listens, and ends with its input. The client runs each case that is
// named and prints its name once it has passed; the first that fails ends it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
)

type test = func(context.Context, *grpc.ClientConn)

func on(call func(context.Context, testgrpc.TestServiceClient, ...grpc.CallOption)) test {
	return func(ctx context.Context, channel *grpc.ClientConn) {
		call(ctx, testgrpc.NewTestServiceClient(channel))
	}
}

var cases = map[string]test{
	"empty_unary":                 on(interop.DoEmptyUnaryCall),
	"large_unary":                 on(interop.DoLargeUnaryCall),
	"client_streaming":            on(interop.DoClientStreaming),
	"server_streaming":            on(interop.DoServerStreaming),
	"ping_pong":                   on(interop.DoPingPong),
	"empty_stream":                on(interop.DoEmptyStream),
	"cancel_after_begin":          on(interop.DoCancelAfterBegin),
	"cancel_after_first_response": on(interop.DoCancelAfterFirstResponse),
	"timeout_on_sleeping_server":  on(interop.DoTimeoutOnSleepingServer),
	"custom_metadata":             on(interop.DoCustomMetadata),
	"status_code_and_message":     on(interop.DoStatusCodeAndMessage),
	"special_status_message":      on(interop.DoSpecialStatusMessage),
	"gzip_unary": func(ctx context.Context, channel *grpc.ClientConn) {
		interop.DoLargeUnaryCall(ctx, testgrpc.NewTestServiceClient(channel), grpc.UseCompressor("gzip"))
	},
	"unimplemented_method": interop.DoUnimplementedMethod,
	"unimplemented_service": func(ctx context.Context, channel *grpc.ClientConn) {
		interop.DoUnimplementedService(ctx, testgrpc.NewUnimplementedServiceClient(channel))
	},
}

func main() {
	listen := flag.String("listen", "", "address of a server")
	callee := flag.String("callee", "", "address of the server of a client")
	flag.Parse()
	if *listen != "" {
		serve(*listen)
		return
	}
	channel, err := grpc.NewClient("passthrough:///"+*callee, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatalf("callee %s: %v", *callee, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, name := range flag.Args() {
		cases[name](ctx, channel)
		fmt.Println(name)
	}
}

func serve(address string) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatalf("listen on %s: %v", address, err)
	}
	server := grpc.NewServer()
	testgrpc.RegisterTestServiceServer(server, interop.NewTestServer())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		server.Stop()
	}()
	fmt.Println(listener.Addr())
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
}
