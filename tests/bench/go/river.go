package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverPeer is River with the settings of its own benchmark (`river bench`).
type riverPeer struct {
	driver  *riverpgxv5.Driver
	client  *river.Client[pgx.Tx]
	settled atomic.Int64
}

type riverJob struct {
	Body string
}

func (riverJob) Kind() string { return "bench" }

func newRiver(url string) (peer, error) {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 80
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return nil, err
	}
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return &riverPeer{driver: driver}, err
}

func (r *riverPeer) submit(jobs []job) error {
	params := make([]river.InsertManyParams, len(jobs))
	for i, job := range jobs {
		params[i].Args = riverJob{job.body}
		if job.after > 0 {
			params[i].InsertOpts = &river.InsertOpts{ScheduledAt: time.Now().Add(job.after)}
		}
	}
	_, err := r.client.InsertManyFast(context.Background(), params)
	return err
}

func (r *riverPeer) work(handle func(body string)) error {
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, job *river.Job[riverJob]) error {
		handle(job.Args.Body)
		return nil
	}))
	client, err := river.NewClient(r.driver, &river.Config{
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}},
		Workers:           workers,
	})
	if err != nil {
		return err
	}
	r.client = client
	events, _ := client.SubscribeConfig(&river.SubscribeConfig{
		ChanSize: 100_000,
		Kinds:    []river.EventKind{river.EventKindJobCompleted},
	})
	go func() {
		for range events {
			r.settled.Add(1)
		}
	}()
	return client.Start(context.Background())
}

func (r *riverPeer) unsettled(handled int64) (int64, error) {
	return handled - r.settled.Load(), nil
}
