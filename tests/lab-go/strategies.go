package main

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsretry "github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/cloudwego/kitex/pkg/retry"
	"github.com/cloudwego/kitex/pkg/rpcinfo"
	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/budget"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	"google.golang.org/grpc"
)

// grpcThrottling is grpc-go's own retries under retryThrottling, by the numbers of gRPC's example.
func grpcThrottling(attempts int, waits waits) grpc.DialOption {
	return grpc.WithDefaultServiceConfig(fmt.Sprintf(`{
		"methodConfig": [{
			"name": [{}],
			"retryPolicy": {
				"maxAttempts": %d,
				"initialBackoff": "%.3fs",
				"maxBackoff": "%.3fs",
				"backoffMultiplier": 2,
				"retryableStatusCodes": ["UNAVAILABLE", "DEADLINE_EXCEEDED"]
			}
		}],
		"retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1}
	}`, attempts, waits.min.Seconds(), waits.max.Seconds()))
}

// awsQuota is the standard retryer of the AWS SDK for Go with its quota, asked as the SDK's own middleware asks it.
func awsQuota(attempts int, waits waits) repeat {
	retryer := awsretry.NewStandard(func(options *awsretry.StandardOptions) {
		options.MaxAttempts = attempts
		options.Retryables = []awsretry.IsErrorRetryable{
			awsretry.IsErrorRetryableFunc(func(err error) aws.Ternary { return aws.BoolTernary(retryable(err)) }),
		}
		options.Backoff = awsretry.BackoffDelayerFunc(func(int, error) (time.Duration, error) {
			return waits.draw(), nil
		})
	})
	return func(ctx context.Context, attempt func(context.Context) error) error {
		release, err := retryer.GetAttemptToken(ctx)
		if err != nil {
			return err
		}
		for made := 1; ; made++ {
			err = attempt(ctx)
			_ = release(err)
			if err == nil || made >= retryer.MaxAttempts() || !retryer.IsErrorRetryable(err) {
				return err
			}
			token, refused := retryer.GetRetryToken(ctx, err)
			if refused != nil {
				return err
			}
			release = token
			delay, _ := retryer.RetryDelay(made, err)
			if slept := sleep(ctx, delay); slept != nil {
				return err
			}
		}
	}
}

// kitex is Kitex's failure retryer with the circuit breaker that it has by default, around a call of grpc-go.
func kitex(attempts int, waits waits) (repeat, func() error) {
	policy := retry.NewFailurePolicy()
	policy.WithMaxRetryTimes(attempts - 1)
	policy.WithRandomBackOff(int(waits.min.Milliseconds()), int(waits.max.Milliseconds()))
	policy.WithSpecifiedResultRetry(&retry.ShouldResultRetry{
		ErrorRetryWithCtx: func(_ context.Context, err error, _ rpcinfo.RPCInfo) bool { return retryable(err) },
	})
	container := retry.NewRetryContainer()
	policies := map[string]retry.Policy{retry.Wildcard: retry.BuildFailurePolicy(policy)}
	if err := container.Init(policies, nil); err != nil {
		panic(err)
	}
	from := rpcinfo.NewEndpointInfo("layer-1", "Call", nil, nil)
	to := rpcinfo.NewEndpointInfo("layer-2", "Call", nil, nil)
	repeat := func(ctx context.Context, attempt func(context.Context) error) error {
		call := rpcinfo.NewInvocation("test.Hop", "Call")
		info := rpcinfo.NewRPCInfo(from, to, call, rpcinfo.NewRPCConfig(), rpcinfo.NewRPCStats())
		ctx = rpcinfo.NewCtxWithRPCInfo(ctx, info)
		again := func(ctx context.Context, _ retry.Retryer) (rpcinfo.RPCInfo, any, error) {
			return info, nil, attempt(ctx)
		}
		_, _, err := container.WithRetryIfNeeded(ctx, nil, again, info, nil)
		return err
	}
	return repeat, container.Close
}

// failsafeGo is failsafe-go's retries under the budget that it has by default.
func failsafeGo(attempts int, waits waits) repeat {
	policy := retrypolicy.NewBuilder[any]().
		HandleIf(func(_ any, err error) bool { return retryable(err) }).
		WithMaxAttempts(attempts).
		WithRandomDelay(waits.min, waits.max).
		WithBudget(budget.New()).
		Build()
	executor := failsafe.With(policy)
	return func(ctx context.Context, attempt func(context.Context) error) error {
		return executor.WithContext(ctx).RunWithExecution(func(execution failsafe.Execution[any]) error {
			return attempt(execution.Context())
		})
	}
}

func sleep(ctx context.Context, delay time.Duration) error {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
