//! The chain lab in little: one pair of strategies, real processes, and bounds that hold on any machine.
//!
//! Nothing here depends on how fast the machine is: no attempt runs out of time, and what is compared are counts. That
//! naive retries keep a chain down after a stall is left to the lab itself, for there time is the very subject.

use std::path::PathBuf;
use std::time::Duration;

use damper_tests::lab::figures::Figures;
use damper_tests::lab::load::Load;
use damper_tests::lab::scenario::{Parts, Scenario, Trouble};
use damper_tests::lab::strategy::{Strategy, Times};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

async fn figures(scenario: Scenario) -> Figures {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_lab"));
    let record = scenario.run(&program).await.expect("the chain runs");
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
        parts: Parts {
            warm_up: ms(500),
            healthy: ms(1000),
            first: ms(1000),
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
