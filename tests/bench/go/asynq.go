package main

import (
	"context"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// asynqPeer is asynq with its defaults. It submits one job at a time: a batch is as many calls at once.
type asynqPeer struct {
	redis  redis.UniversalClient
	client *asynq.Client
}

func newAsynq(url string) (peer, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	options.PoolSize = 2 * concurrency
	client := redis.NewClient(options)
	return &asynqPeer{client, asynq.NewClientFromRedisClient(client)}, client.Ping(context.Background()).Err()
}

func (a *asynqPeer) submit(jobs []job) error {
	failed := make(chan error, len(jobs))
	var calls sync.WaitGroup
	for _, job := range jobs {
		calls.Go(func() {
			_, err := a.client.Enqueue(asynq.NewTask("bench", []byte(job.body)), asynq.ProcessIn(job.after))
			if err != nil {
				failed <- err
			}
		})
	}
	calls.Wait()
	close(failed)
	return <-failed
}

func (a *asynqPeer) work(handle func(body string)) error {
	server := asynq.NewServerFromRedisClient(a.redis, asynq.Config{
		Concurrency:     concurrency,
		LogLevel:        asynq.ErrorLevel,
		ShutdownTimeout: time.Second,
	})
	return server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		handle(string(task.Payload()))
		return nil
	}))
}

func (a *asynqPeer) unsettled(int64) (int64, error) {
	return a.redis.LLen(context.Background(), "asynq:{default}:active").Result()
}
