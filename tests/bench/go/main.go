// Command bench-go is what Damper is compared with and called by: the durable queues asynq, River and JetStream, and
// both ends of calls by grpc-go.
//
// tests/bench/src/rows/queue decides what is played. `bench-go PEER URL` connects to a store, prints "ready",
// carries out the order in each line of input, and prints a line with the answer. It ends with its input.
// `bench-go nats-server FOLDER PORT` serves JetStream and syncs each write. `bench-go serve-calls` prints where it
// serves a method of gRPC, which `bench-go make-calls` calls as each line of input asks.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	bodyBytes = 512
	// Jobs handled at the same time, by every peer.
	concurrency = 256
	// As long as jobs wait that only have to wait.
	later = time.Hour
	// From the submission of jobs with a due time until the first is due.
	ahead = 2 * time.Second
	// Between two jobs on an idle queue.
	rest = 50 * time.Millisecond
)

// order is one measurement: tests/bench/src/queue has the fields.
type order struct {
	Do         string
	Count      int
	Submitters int
	Batch      int
	PerSecond  int `json:"per_second"`
}

// answer contains the duration of the whole, and the time of each job where that is asked for.
type answer struct {
	Seconds      float64   `json:"seconds"`
	Milliseconds []float64 `json:"milliseconds"`
}

// job is due after some time, which is 0 for at once. Its body begins with its due time.
type job struct {
	body  string
	after time.Duration
}

// peer is a queue with its worker.
type peer interface {
	// submit returns when all jobs are durable.
	submit(jobs []job) error
	// work handles each job by this function, in the background.
	work(handle func(body string)) error
	// unsettled returns the number of jobs that were handled and may still be delivered again.
	unsettled(handled int64) (int64, error)
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench-go:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "nats-server":
		return serveNATS(args[1], args[2])
	case len(args) == 1 && args[0] == "serve-calls":
		return serveCalls()
	case len(args) == 1 && args[0] == "make-calls":
		return makeCalls()
	}
	if len(args) != 2 {
		return fmt.Errorf("needs a peer and its URL")
	}
	var peer peer
	var err error
	switch args[0] {
	case "asynq":
		peer, err = newAsynq(args[1])
	case "river":
		peer, err = newRiver(args[1])
	case "jetstream":
		peer, err = newJetStream(args[1])
	default:
		return fmt.Errorf("unknown peer %q", args[0])
	}
	if err != nil {
		return err
	}
	load := &load{peer: peer}
	if err := peer.work(load.handle); err != nil {
		return err
	}
	answers := json.NewEncoder(os.Stdout)
	if err := answers.Encode("ready"); err != nil {
		return err
	}
	orders := json.NewDecoder(bufio.NewReader(os.Stdin))
	for {
		var order order
		if err := orders.Decode(&order); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		answer, err := load.play(&order)
		if err != nil {
			return fmt.Errorf("%s: %w", order.Do, err)
		}
		if err := answers.Encode(answer); err != nil {
			return err
		}
	}
}

// load plays orders on a peer.
type load struct {
	peer    peer
	lock    sync.Mutex
	handled int64
	// Lateness of the jobs handled, in milliseconds.
	lateness []float64
}

func (l *load) handle(body string) {
	now := time.Now()
	due, _, _ := strings.Cut(body, " ")
	nanos, _ := strconv.ParseInt(due, 10, 64)
	late := float64(now.UnixNano()-nanos) / 1e6
	l.lock.Lock()
	defer l.lock.Unlock()
	l.handled++
	l.lateness = append(l.lateness, late)
}

func newJob(after time.Duration) job {
	due := strconv.FormatInt(time.Now().Add(after).UnixNano(), 10) + " "
	return job{due + strings.Repeat("x", bodyBytes-len(due)), after}
}

func (l *load) play(order *order) (*answer, error) {
	l.lock.Lock()
	before := l.handled
	l.lateness = nil
	l.lock.Unlock()
	begin := time.Now()
	switch order.Do {
	case "submit":
		err := l.submit(order, later)
		return &answer{Seconds: time.Since(begin).Seconds()}, err
	case "lives":
		if err := l.submit(order, 0); err != nil {
			return nil, err
		}
		err := l.settled(before + int64(order.Count))
		return &answer{Seconds: time.Since(begin).Seconds()}, err
	case "late":
		jobs := make([]job, order.Count)
		for i := range jobs {
			due := ahead + time.Duration(i)*time.Second/time.Duration(order.PerSecond)
			jobs[i] = newJob(due - time.Since(begin))
		}
		for start := 0; start < len(jobs); start += order.Batch {
			if err := l.peer.submit(jobs[start:min(start+order.Batch, len(jobs))]); err != nil {
				return nil, err
			}
		}
	case "first":
		for i := range order.Count {
			time.Sleep(rest)
			if err := l.peer.submit([]job{newJob(0)}); err != nil {
				return nil, err
			}
			if err := l.settled(before + int64(i) + 1); err != nil {
				return nil, err
			}
		}
	default:
		return nil, fmt.Errorf("unknown order")
	}
	err := l.settled(before + int64(order.Count))
	return &answer{time.Since(begin).Seconds(), l.lateness}, err
}

// submit submits the jobs of an order, in batches and by all submitters at once.
func (l *load) submit(order *order, after time.Duration) error {
	batches := make(chan int, order.Count/order.Batch+1)
	for left := order.Count; left > 0; left -= order.Batch {
		batches <- min(left, order.Batch)
	}
	close(batches)
	failed := make(chan error, order.Submitters)
	var submitters sync.WaitGroup
	for range order.Submitters {
		submitters.Go(func() {
			for size := range batches {
				jobs := make([]job, size)
				for i := range jobs {
					jobs[i] = newJob(after)
				}
				if err := l.peer.submit(jobs); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	submitters.Wait()
	close(failed)
	return <-failed
}

// settled waits until this many jobs have been handled in all, and none of them can be delivered again.
func (l *load) settled(count int64) error {
	for {
		l.lock.Lock()
		handled := l.handled
		l.lock.Unlock()
		if handled >= count {
			if left, err := l.peer.unsettled(handled); err != nil || left == 0 {
				return err
			}
		}
		time.Sleep(time.Millisecond)
	}
}
