// Command lab-go plays the callers of a fleet in the lab, with what Go has against too many retries.
//
// What is played is decided in tests/src/lab: this program is told what it is by its one argument, says that it is
// ready, plays the load that it is given by one line of input, and tells by one line how each call ended. It ends when
// its input does.
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

// order is what the process is told: the calls to make, each with its number, when it is due after the load has begun,
// in microseconds, and which identity makes it.
type order struct {
	Load [][3]int64
}

// answer tells, call by call, how many microseconds it took and whether it succeeded.
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
	told := json.NewEncoder(out)
	if err := told.Encode("ready"); err != nil {
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
		if err := told.Encode(answer{fleet.play(order.Load)}); err != nil {
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
	var underWay sync.WaitGroup
	for i, call := range load {
		due := begin.Add(time.Duration(call[1]) * time.Microsecond)
		time.Sleep(time.Until(due))
		identity := f.identities[call[2]].Load()
		underWay.Go(func() {
			ctx, cancel := context.WithDeadline(context.Background(), due.Add(f.spec.Patience.of()))
			defer cancel()
			err := identity.call(ctx, strconv.FormatInt(call[0], 10))
			ended[i] = [2]any{time.Since(due).Microseconds(), err == nil}
		})
	}
	underWay.Wait()
	return ended
}

// restart lets identities take turns to be thrown away and made anew, each once in every so long.
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
			fmt.Fprintln(os.Stderr, "lab-go: an identity does not begin anew:", err)
			os.Exit(1)
		}
		old := f.identities[(turn-1)%count].Swap(identity)
		// By then its calls have ended.
		time.AfterFunc(f.spec.Patience.of(), old.close)
	}
}
