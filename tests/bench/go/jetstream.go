package main

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// jetStreamPeer is a work queue with explicit acknowledgements that the server confirms. Jobs with a time are
// message schedules, each with a subject of its own; those that only have to wait are kept without one.
type jetStreamPeer struct {
	js      jetstream.JetStream
	stream  jetstream.Stream
	settled atomic.Int64
	number  atomic.Int64
}

func newJetStream(url string) (peer, error) {
	connection, err := nats.Connect(url)
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(connection)
	if err != nil {
		return nil, err
	}
	stream, err := js.CreateStream(context.Background(), jetstream.StreamConfig{
		Name:              "BENCH",
		Subjects:          []string{"job", "kept", "due.*"},
		Retention:         jetstream.WorkQueuePolicy,
		Storage:           jetstream.FileStorage,
		AllowMsgSchedules: true,
	})
	return &jetStreamPeer{js: js, stream: stream}, err
}

func (j *jetStreamPeer) submit(jobs []job) error {
	acks := make([]jetstream.PubAckFuture, len(jobs))
	for i, job := range jobs {
		message := &nats.Msg{Subject: "job", Data: []byte(job.body)}
		if job.after >= later {
			message.Subject = "kept"
		} else if job.after > 0 {
			message.Subject = fmt.Sprint("due.", j.number.Add(1))
			message.Header = nats.Header{
				"Nats-Schedule":        {"@at " + time.Now().Add(job.after).UTC().Format(time.RFC3339Nano)},
				"Nats-Schedule-Target": {"job"},
			}
		}
		ack, err := j.js.PublishMsgAsync(message)
		if err != nil {
			return err
		}
		acks[i] = ack
	}
	for _, ack := range acks {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			return err
		}
	}
	return nil
}

func (j *jetStreamPeer) work(handle func(body string)) error {
	ctx := context.Background()
	consumer, err := j.stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable:       "bench",
		AckPolicy:     jetstream.AckExplicitPolicy,
		FilterSubject: "job",
	})
	if err != nil {
		return err
	}
	slots := make(chan struct{}, concurrency)
	_, err = consumer.Consume(func(message jetstream.Msg) {
		slots <- struct{}{}
		go func() {
			handle(string(message.Data()))
			if err := message.DoubleAck(ctx); err == nil {
				j.settled.Add(1)
			}
			<-slots
		}()
	})
	return err
}

func (j *jetStreamPeer) unsettled(handled int64) (int64, error) {
	return handled - j.settled.Load(), nil
}

// serveNATS serves JetStream from a folder until the process is killed.
func serveNATS(folder, port string) error {
	number, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	nats, err := server.NewServer(&server.Options{
		Host:       "127.0.0.1",
		Port:       number,
		JetStream:  true,
		StoreDir:   folder,
		SyncAlways: true,
	})
	if err != nil {
		return err
	}
	nats.Start()
	if !nats.ReadyForConnections(30 * time.Second) {
		return fmt.Errorf("nats-server does not answer")
	}
	nats.WaitForShutdown()
	return nil
}
