package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// method is the one that every hop of the lab has; a message is one string.
const method = "/test.Hop/Call"

// identity is one caller: a process of its own, but for the process.
type identity struct {
	connection *grpc.ClientConn
	repeat     repeat
	attempt    time.Duration
	// release ends what the strategy runs in the background; nil: nothing.
	release func() error
}

// repeat makes a call of attempts, as a strategy does.
type repeat func(ctx context.Context, attempt func(context.Context) error) error

func newIdentity(spec *spec) (*identity, error) {
	waits := waits{spec.Waits[0].of(), spec.Waits[1].of()}
	attempt := spec.Layer.Times.Attempt.of()
	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	var repeat repeat
	var release func() error
	switch spec.Layer.Strategy {
	case "grpc-throttling":
		options = append(options, grpcThrottling(spec.Attempts, waits))
		repeat = once
		// gRPC has no time-out of an attempt: the call's own is for all of them.
		attempt = spec.Patience.of()
	case "aws-quota":
		repeat = awsQuota(spec.Attempts, waits)
	case "kitex":
		repeat, release = kitex(spec.Attempts, waits)
	case "failsafe-go":
		repeat = failsafeGo(spec.Attempts, waits)
	default:
		return nil, fmt.Errorf("there is no strategy %q in Go", spec.Layer.Strategy)
	}
	connection, err := grpc.NewClient("passthrough:///"+spec.Layer.Next[0], options...)
	if err != nil {
		return nil, err
	}
	return &identity{connection, repeat, attempt, release}, nil
}

func (i *identity) call(ctx context.Context, text string) error {
	return i.repeat(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, i.attempt)
		defer cancel()
		return i.connection.Invoke(ctx, method, wrapperspb.String(text), new(wrapperspb.StringValue))
	})
}

func (i *identity) close() {
	_ = i.connection.Close()
	if i.release != nil {
		_ = i.release()
	}
}

func once(ctx context.Context, attempt func(context.Context) error) error {
	return attempt(ctx)
}

// retryable returns true if a call with this error may be retried.
func retryable(err error) bool {
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.DeadlineExceeded
}

// waits is the shortest and the longest wait before a retry; any between is as likely.
type waits struct{ min, max time.Duration }

func (w waits) draw() time.Duration {
	return w.min + rand.N(w.max-w.min+1)
}
