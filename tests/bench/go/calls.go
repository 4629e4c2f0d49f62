package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const method = "/test.Hop/Call"

// calls is a load of unary calls: tests/bench/src/rows/proxy.rs has the fields.
type calls struct {
	Address      string
	Connections  int
	InFlight     int `json:"in_flight"`
	Milliseconds int
	// PerSecond is 0 for as many as the calls in flight allow.
	PerSecond int `json:"per_second"`
}

// called contains the calls made, and the latency of half and of 99 % of them.
type called struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50_us"`
	P99   float64 `json:"p99_us"`
}

// serveCalls serves the method that returns its request, until the process is killed.
func serveCalls() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	call := func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		request := new(wrapperspb.StringValue)
		return request, decode(request)
	}
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Hop",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Call", Handler: call}},
	}, nil)
	fmt.Println(listener.Addr())
	return server.Serve(listener)
}

// makeCalls plays the load in each line of input. Connections stay open until the next load.
func makeCalls() error {
	answers := json.NewEncoder(os.Stdout)
	orders := json.NewDecoder(bufio.NewReader(os.Stdin))
	var channels []*grpc.ClientConn
	for {
		var order calls
		if err := orders.Decode(&order); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		for _, channel := range channels {
			channel.Close()
		}
		channels = nil
		for range order.Connections {
			channel, err := grpc.NewClient("passthrough:///"+order.Address,
				grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				return err
			}
			channels = append(channels, channel)
			// Connected before the load begins.
			if _, err := call(channel); err != nil {
				return err
			}
		}
		called, err := order.play(channels)
		if err != nil {
			return err
		}
		if err := answers.Encode(called); err != nil {
			return err
		}
	}
}

func (c *calls) play(channels []*grpc.ClientConn) (*called, error) {
	begin := time.Now()
	end := begin.Add(time.Duration(c.Milliseconds) * time.Millisecond)
	var lock sync.Mutex
	var all []float64
	var failed error
	var callers sync.WaitGroup
	for caller := range c.InFlight {
		callers.Go(func() {
			var own []float64
			for turn := caller; time.Now().Before(end); turn += c.InFlight {
				if c.PerSecond > 0 {
					time.Sleep(time.Until(begin.Add(time.Duration(turn) * time.Second / time.Duration(c.PerSecond))))
				}
				took, err := call(channels[turn%len(channels)])
				if err != nil {
					lock.Lock()
					failed = err
					lock.Unlock()
					return
				}
				own = append(own, float64(took.Nanoseconds())/1e3)
			}
			lock.Lock()
			defer lock.Unlock()
			all = append(all, own...)
		})
	}
	callers.Wait()
	slices.Sort(all)
	if failed != nil || len(all) == 0 {
		return &called{}, failed
	}
	return &called{len(all), all[len(all)/2], all[len(all)*99/100]}, nil
}

func call(channel *grpc.ClientConn) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	begin := time.Now()
	err := channel.Invoke(ctx, method, wrapperspb.String("a request of a few bytes"), new(wrapperspb.StringValue))
	return time.Since(begin), err
}
