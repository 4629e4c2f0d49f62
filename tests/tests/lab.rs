//! The lab in little: chains and fleets of real processes, and bounds that hold on any machine.
//!
//! Nothing here depends on how fast the machine is: no attempt runs out of time, and what is compared are counts. That
//! naive retries keep a chain down after a stall is left to the lab itself, for there time is the very subject.

use std::path::{Path, PathBuf};
use std::time::Duration;

use damper_tests::lab::figures::Figures;
use damper_tests::lab::fleet::{Fleet, Programs};
use damper_tests::lab::go;
use damper_tests::lab::load::Load;
use damper_tests::lab::scenario::{Parts, Scenario, Trouble};
use damper_tests::lab::strategy::{Strategy, Times};
use futures_util::future::join_all;
use tokio::sync::OnceCell;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Builds the callers in Go once.
async fn go() -> PathBuf {
    static GO: OnceCell<PathBuf> = OnceCell::const_new();
    let built = || async { go::build(Path::new(env!("CARGO_TARGET_TMPDIR"))).await.expect("callers in Go") };
    GO.get_or_init(built).await.clone()
}

async fn figures(scenario: Scenario) -> Figures {
    let go = match scenario.strategy.is_go() {
        true => Some(go().await),
        false => None,
    };
    let programs = Programs { lab: PathBuf::from(env!("CARGO_BIN_EXE_lab")), go };
    let record = scenario.run(&programs).await.expect("the chain runs");
    Figures::of(&record, &scenario)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_multiplied_by_naive_retries_and_not_by_damper() {
    let scenario = |strategy| Scenario {
        layers: 4,
        trouble: Trouble::Errors(100),
        strategy,
        times: Times { attempt: ms(60_000), bucket: ms(100), deadline: ms(60_000), hedge: ms(1000) },
        load: Load { rate: 10, patience: ms(60_000) },
        fleet: None,
        parts: Parts {
            warm_up: ms(500),
            healthy: ms(1000),
            // The longest delay of a busy machine before the fault is set.
            first: ms(5000),
            steady: ms(1500),
            // A machine may be busy for so long before a request that was due finds the fault gone.
            end: ms(5000),
            after: ms(500),
        },
        capacity: None,
        seed: 1,
    };
    let (naive, damper) =
        tokio::join!(figures(scenario(Strategy::Naive)), figures(scenario(Strategy::Damper)));
    assert_eq!(naive.steady.attempts, [1.0, 3.0, 9.0, 27.0], "r^(m-1): {naive:?}");
    assert_eq!(naive.worst, 27);
    assert!((2..=3).contains(&damper.worst), "at most r: {damper:?}");
    assert_eq!(damper.steady.attempts[..3], [1.0; 3], "only the hop nearest the fault repeats");
    assert!(damper.steady.faulty <= 1.1, "{damper:?}");
    assert_eq!((naive.steady.success, damper.steady.success), (0.0, 0.0));
}

/// Twenty callers in one process, and a minute for everything that could take long on a busy machine.
fn fleet(trouble: Trouble, strategy: Strategy, restart: Option<Duration>) -> Scenario {
    Scenario {
        layers: 2,
        trouble,
        strategy,
        times: Times { attempt: ms(60_000), bucket: ms(1000), deadline: ms(60_000), hedge: ms(1000) },
        load: Load { rate: 40, patience: ms(60_000) },
        fleet: Some(Fleet { callers: 20, restart }),
        parts: Parts {
            warm_up: ms(0),
            healthy: ms(500),
            first: ms(5000),
            steady: ms(1000),
            end: ms(5000),
            after: ms(500),
        },
        capacity: None,
        seed: 1,
    }
}

const OF_FLEETS: [Strategy; 8] = [
    Strategy::None,
    Strategy::Naive,
    Strategy::TowerBudget,
    Strategy::GrpcThrottling,
    Strategy::AwsQuota,
    Strategy::Kitex,
    Strategy::FailsafeGo,
    Strategy::Damper,
];

#[tokio::test(flavor = "multi_thread")]
async fn each_small_caller_repeats_its_first_failures_unless_it_needs_credit() {
    // Before the load of others: the build takes all cores.
    go().await;
    let all = OF_FLEETS.map(|strategy| async move {
        let figures = figures(fleet(Trouble::Errors(100), strategy, None)).await;
        let most = match strategy {
            // Half a second has earned nobody a retry.
            Strategy::None | Strategy::Damper => 1,
            _ => 3,
        };
        assert_eq!(figures.worst, most, "{strategy}: {figures:?}");
        assert_eq!((figures.steady.success, figures.steady.attempts[0]), (0.0, 1.0), "{strategy}");
        if matches!(strategy, Strategy::Naive | Strategy::FailsafeGo) {
            assert_eq!(figures.steady.faulty, 3.0, "{strategy} is not held back: {figures:?}");
        }
    });
    join_all(all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_begin_anew_and_lose_no_call() {
    let strategies = [Strategy::Damper, Strategy::TowerBudget, Strategy::GrpcThrottling, Strategy::Kitex];
    go().await;
    let all = strategies.map(|strategy| async move {
        let figures = figures(fleet(Trouble::Errors(0), strategy, Some(ms(1000)))).await;
        assert_eq!((figures.steady.success, figures.after.success), (1.0, 1.0), "{strategy}: {figures:?}");
        assert_eq!((figures.steady.faulty, figures.worst), (1.0, 1), "{strategy}: {figures:?}");
    });
    join_all(all).await;
}
