// Command serviceconfig gives each service config in the files of its arguments to a client of grpc-go, and fails
// if the client refuses one.
package main

import (
	"fmt"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func main() {
	status := 0
	for _, file := range os.Args[1:] {
		if err := accept(file); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", file, err)
			status = 1
		}
	}
	os.Exit(status)
}

// accept returns why a client refuses the service config in the file. No connection is made.
func accept(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	client, err := grpc.NewClient(
		"passthrough:///callee",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(string(text)),
	)
	if err != nil {
		return err
	}
	return client.Close()
}
