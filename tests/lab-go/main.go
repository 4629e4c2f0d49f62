// Command lab-go plays the callers of a fleet in the lab, with what Go has against too many retries.
//
// tests/src/lab decides what is played: the one argument is the spec of this process. It prints "ready", plays
// the load in each line of input, and prints a line with the result of each call. It ends at the end of its
// input.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// duration is a time as Rust's serde writes it.
type duration struct {
	Secs  int64
	Nanos int64
}

func (d duration) of() time.Duration {
	return time.Duration(d.Secs)*time.Second + time.Duration(d.Nanos)
}

// spec is what the process is: tests/src/lab/caller.rs has the fields.
type spec struct {
	Layer struct {
		Strategy string
		Times    struct{ Attempt duration }
		Next     []string
	}
	Identities int
	Attempts   int
	Waits      [2]duration
	Patience   duration
	Restart    *duration
}

// order lists the calls to make: the number of each, the time after the start at which it is due, in
// microseconds, and its identity.
type order struct {
	Load [][3]int64
}

// answer contains, for each call, its microseconds and whether it succeeded.
type answer struct {
	Ended [][2]any `json:"ended"`
}

func main() {
	if err := run(os.Args, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "lab-go:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 2 {
		return fmt.Errorf("needs one argument: what it is, as JSON")
	}
	var spec spec
	if err := json.Unmarshal([]byte(args[1]), &spec); err != nil {
		return err
	}
	fleet, err := newFleet(&spec)
	if err != nil {
		return err
	}
	answers := json.NewEncoder(out)
	if err := answers.Encode("ready"); err != nil {
		return err
	}
	orders := json.NewDecoder(bufio.NewReader(in))
	for {
		var order order
		if err := orders.Decode(&order); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := answers.Encode(answer{fleet.play(order.Load)}); err != nil {
			return err
		}
	}
}

// fleet is the identities of this process: each calls over a connection and with counts of its own.
type fleet struct {
	spec       *spec
	identities []atomic.Pointer[identity]
}

func newFleet(spec *spec) (*fleet, error) {
	fleet := &fleet{spec, make([]atomic.Pointer[identity], spec.Identities)}
	for i := range fleet.identities {
		identity, err := newIdentity(spec)
		if err != nil {
			return nil, err
		}
		fleet.identities[i].Store(identity)
	}
	return fleet, nil
}

func (f *fleet) play(load [][3]int64) [][2]any {
	begin := time.Now()
	if f.spec.Restart != nil {
		stop := make(chan struct{})
		defer close(stop)
		go f.restart(begin, f.spec.Restart.of(), stop)
	}
	ended := make([][2]any, len(load))
	var inFlight sync.WaitGroup
	for i, call := range load {
		due := begin.Add(time.Duration(call[1]) * time.Microsecond)
		time.Sleep(time.Until(due))
		identity := f.identities[call[2]].Load()
		inFlight.Go(func() {
			ctx, cancel := context.WithDeadline(context.Background(), due.Add(f.spec.Patience.of()))
			defer cancel()
			err := identity.call(ctx, strconv.FormatInt(call[0], 10))
			ended[i] = [2]any{time.Since(due).Microseconds(), err == nil}
		})
	}
	inFlight.Wait()
	return ended
}

// restart replaces the identities in turn, each once per interval.
func (f *fleet) restart(begin time.Time, every time.Duration, stop <-chan struct{}) {
	count := len(f.identities)
	for turn := 1; ; turn++ {
		due := begin.Add(every * time.Duration(turn) / time.Duration(count))
		select {
		case <-stop:
			return
		case <-time.After(time.Until(due)):
		}
		identity, err := newIdentity(f.spec)
		if err != nil {
			fmt.Fprintln(os.Stderr, "lab-go: an identity cannot be replaced:", err)
			os.Exit(1)
		}
		old := f.identities[(turn-1)%count].Swap(identity)
		// By then its calls have ended.
		time.AfterFunc(f.spec.Patience.of(), old.close)
	}
}
