//! The scenario: healthy; an outage with naive retries; the same outage with governed rules; recovery; an
//! outage whose orders wait in a durable queue.
//!
//! The scenes run on a fixed schedule against the running chain, without simulation: rules change through the
//! admin API, faults through the switch. With `--observe` the naive rules first run in observe mode during
//! the outage, which predicts their effect.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use damper_core::RetryBreaker;
use tokio::time::{sleep_until, timeout};

use super::chain::{Callers, HOPS};
use super::fault::{Share, Switch};
use super::kept::Kept;
use super::ledger::{LAYERS, Ledger, Sums};
use super::operator::{Applied, Operator, max_attempts};
use super::report::{self, Apply, Fates, Governed, Healed, KeptReport, Phase, Prediction, Report};
use super::terminal::Announcer;

const NAIVE: &str = include_str!("../../demo/naive.yaml");
const OBSERVE: &str = include_str!("../../demo/observe.yaml");
const GOVERNED: &str = include_str!("../../demo/governed.yaml");

/// Failures of stock after its recovery: 2 %.
const REMAINING_FAULT: Share = Share::of_bp(200).expect("not above 100 %");
/// Time of the governed outage after the window.
const GOVERNED_AFTER_WINDOW: Duration = Duration::from_secs(4);
/// Time of the recovery after the window: some of the rare faults must fall into it.
const HEALED_AFTER_WINDOW: Duration = Duration::from_secs(8);

/// Time within which stock takes all kept orders after its recovery.
const DELIVERED_WITHIN: Duration = Duration::from_secs(60);

/// Lines between two headings in the endless part.
const LINES_PER_HEAD: u64 = 30;

/// Handles of the scenario.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) callers: Callers,
    pub(super) ledger: Arc<Ledger>,
    pub(super) fault: Arc<Switch>,
    pub(super) kept: Arc<Kept>,
    pub(super) operator: Operator,
    pub(super) announcer: Announcer,
}

/// The scenes and their results so far.
#[derive(Debug)]
pub(super) struct Scenario {
    stage: Stage,
    scenes: Vec<Scene>,
    played: Vec<Played>,
    governed: Option<(Applied, usize)>,
    kept: Option<KeptReport>,
    origin: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Scene {
    name: &'static str,
    headline: &'static str,
    text: &'static str,
    /// Rules applied at the start of the scene.
    rules: Option<&'static str>,
    fault: Share,
    seconds: u64,
    /// Inventory hands over orders that stock does not take.
    hands_over: bool,
    /// Closing line of the scene.
    closing: fn(&Sums) -> String,
}

/// An ended scene and its stretch of the ledger.
#[derive(Debug)]
struct Played {
    scene: Scene,
    stretch: usize,
    fates: Vec<Fates>,
}

/// Default window of a retry breaker, as in the demo's rules.
pub(super) fn window() -> Duration {
    RetryBreaker::default().window.length()
}

impl Scenario {
    /// Returns a scenario with scenes of at least this length.
    pub(super) fn new(stage: Stage, scene_seconds: u64, observe: bool) -> Self {
        Self::of(stage, scenes(scene_seconds, observe))
    }

    /// Returns a scenario without scenes: governed rules and healthy services.
    pub(super) fn none(stage: Stage) -> Self {
        Self::of(stage, Vec::new())
    }

    fn of(stage: Stage, scenes: Vec<Scene>) -> Self {
        Self { stage, scenes, played: Vec::new(), governed: None, kept: None, origin: Instant::now() }
    }

    /// Applies the first rules and begins the first stretch; the load may start then.
    pub(super) async fn prepare(&mut self) -> anyhow::Result<()> {
        let observes = self.scenes.iter().any(|scene| scene.name == "observe");
        let first = match (self.scenes.is_empty(), observes) {
            (true, _) => GOVERNED,
            (false, true) => OBSERVE,
            (false, false) => NAIVE,
        };
        self.stage.operator.apply_everywhere(first, "demo: before the scenario").await?;
        self.origin = Instant::now();
        self.stage.ledger.begin(self.origin);
        Ok(())
    }

    /// Plays every scene.
    pub(super) async fn play(&mut self) -> anyhow::Result<()> {
        for (index, scene) in self.scenes.clone().into_iter().enumerate() {
            let announcer = &self.stage.announcer;
            announcer.headline(format!("{} of {}  {}", index + 1, self.scenes.len(), scene.headline));
            announcer.text(scene.text);
            self.play_scene(scene).await?;
        }
        Ok(())
    }

    /// Prints the results of all scenes.
    pub(super) fn sum_up(&self, report: &Report) {
        let announcer = &self.stage.announcer;
        announcer.headline("Results");
        announcer.text("  phase        success   attempts at stock per request");
        for phase in &report.phases {
            let success = phase.success_percent.unwrap_or(0.0);
            let bottom = phase.bottom_amplification.unwrap_or(0.0);
            announcer.text(format!("  {:<10} {success:7.1} %   {bottom:6.2}", phase.name));
        }
        if let Some(prediction) = &report.prediction {
            let predicted = prediction.bottom_amplification;
            announcer.text(format!("  Predicted from observe mode for phase naive: {predicted:.2}."));
        }
    }

    /// After the last scene: prints one line per second until the end of the demo.
    pub(super) async fn watch(&self) {
        let announcer = &self.stage.announcer;
        announcer.headline("The demo continues: open the web UI, change rules, set faults. Ctrl-C stops it.");
        let began = Instant::now();
        let stretch = self.stage.ledger.begin(began);
        for second in 0.. {
            if second % LINES_PER_HEAD == 0 {
                announcer.columns();
            }
            self.tell_second(began, stretch, second).await;
        }
    }

    async fn play_scene(&mut self, scene: Scene) -> anyhow::Result<()> {
        if let Some(rules) = scene.rules {
            self.change_rules(scene.name, rules).await?;
        }
        let fates_before = self.stage.callers.fates();
        self.stage.fault.set(scene.fault);
        self.stage.kept.set_hands_over(scene.hands_over);
        let began = Instant::now();
        let stretch = self.stage.ledger.begin(began);
        self.stage.announcer.columns();
        for second in 0..scene.seconds {
            self.tell_second(began, stretch, second).await;
        }
        self.leave(stretch).await;
        self.stage.announcer.closing(stretch, scene.closing);
        let fates = report::since(&fates_before, &self.stage.callers.fates());
        self.played.push(Played { scene, stretch, fates });
        if scene.hands_over { self.deliver_kept().await } else { Ok(()) }
    }

    /// Lets stock recover and waits until it has taken every kept order; prints their number each second.
    async fn deliver_kept(&mut self) -> anyhow::Result<()> {
        let Stage { kept, fault, announcer, .. } = &self.stage;
        kept.set_hands_over(false);
        let waiting = kept.figures();
        announcer.text(format!(
            "stock recovers: {} orders wait in the queue, {} deliveries failed meanwhile.",
            waiting.kept - waiting.delivered,
            waiting.failed_deliveries,
        ));
        fault.set(Share::NONE);
        let began = Instant::now();
        let all = loop {
            match timeout(Duration::from_secs(1), kept.delivered()).await {
                Ok(all) => break all,
                Err(_) => announcer.text(format!("  {:>6} delivered", kept.figures().delivered)),
            }
            ensure!(began.elapsed() < DELIVERED_WITHIN, "not all kept orders arrived: {:?}", kept.figures());
        };
        let delivered_after_s = began.elapsed().as_secs_f64();
        announcer.text(format!(
            "  => {} orders kept, all delivered {delivered_after_s:.1} s after the recovery of stock",
            all.kept
        ));
        self.kept = Some(KeptReport { orders: all, delivered_after_s });
        Ok(())
    }

    /// Waits until every request of a stretch has ended, so that the rules and faults of the next scene do
    /// not affect them. Requests started meanwhile belong to no scene.
    async fn leave(&self, stretch: usize) {
        self.stage.ledger.begin(Instant::now());
        for second in 0..self.stage.ledger.sums(stretch).seconds.len() {
            self.stage.ledger.settled(stretch, second).await;
        }
    }

    async fn change_rules(&mut self, scene: &str, rules: &str) -> anyhow::Result<()> {
        let meanwhile = self.stage.ledger.begin(Instant::now());
        let reason = format!("demo: {scene}");
        let applied = self.stage.operator.apply_everywhere(rules, &reason).await?;
        self.stage.announcer.text(format!(
            "Rules applied through the admin API: all {} services acknowledged within {:.0} ms.",
            applied.acknowledged.len(),
            report::millis(applied.last()).ceil(),
        ));
        if scene == "governed" {
            self.governed = Some((applied, meanwhile));
        }
        Ok(())
    }

    async fn tell_second(&self, began: Instant, stretch: usize, second: u64) {
        sleep_until((began + Duration::from_secs(second + 1)).into()).await;
        let clock = (began - self.origin).as_secs() + second + 1;
        let index = usize::try_from(second).unwrap_or(usize::MAX);
        self.stage.announcer.second(stretch, index, clock);
    }

    /// Returns the results of the ended scenes.
    pub(super) fn report(&self, load_per_s: u32, seed: u64) -> anyhow::Result<Report> {
        let ledger = &self.stage.ledger;
        let sums_of = |name| self.named(name).map(|played| ledger.sums(played.stretch));
        let apply =
            self.governed.as_ref().map(|(applied, meanwhile)| Apply::of(applied, &ledger.sums(*meanwhile)));
        let phase = |played: &Played| {
            let (scene, sums) = (&played.scene, ledger.sums(played.stretch));
            Phase::of(scene.name, scene.seconds, scene.fault.percent(), &sums, &played.fates)
        };
        let phases: Vec<_> = self.played.iter().map(phase).collect();
        Ok(Report {
            chain: LAYERS,
            load_per_s,
            seed,
            window_s: window().as_secs_f64(),
            apply_to_last_ack_ms: self.governed.as_ref().map(|(applied, _)| report::millis(applied.last())),
            apply,
            governed: sums_of("governed").map(|sums| Governed::of(&sums, window())),
            healed: sums_of("healed").map(|sums| Healed::of(&sums, window())),
            kept: self.kept,
            prediction: self.prediction(&phases)?,
            phases,
        })
    }

    fn prediction(&self, phases: &[Phase]) -> anyhow::Result<Option<Prediction>> {
        let Some(observed) = self.named("observe") else { return Ok(None) };
        let attempts: Vec<u32> =
            HOPS.iter().map(|hop| max_attempts(OBSERVE, hop)).collect::<anyhow::Result<_>>()?;
        let naive = phases.iter().find(|phase| phase.name == "naive");
        Ok(Some(Prediction {
            measured: naive.and_then(|phase| phase.bottom_amplification),
            ..Prediction::of(&observed.fates, &attempts)
        }))
    }

    fn named(&self, name: &str) -> Option<&Played> {
        self.played.iter().find(|played| played.scene.name == name)
    }
}

fn scenes(seconds: u64, observe: bool) -> Vec<Scene> {
    let beyond_window = |more: Duration| seconds.max((window() + more).as_secs());
    let healthy = Scene {
        name: "healthy",
        headline: "healthy",
        text: "Each request passes all four services. No failures, no retries.",
        rules: None,
        fault: Share::NONE,
        seconds,
        hands_over: false,
        closing: amplification,
    };
    let observed = Scene {
        name: "observe",
        headline: "stock fails every call; rules for each layer only observe",
        text: "They count the retries that they would make on real traffic, but make none.",
        fault: Share::ALL,
        ..healthy
    };
    let naive = Scene {
        name: "naive",
        headline: "stock fails every call; each layer retries on its own",
        text: "Three independent hops with 3 attempts each: 3 x 3 x 3 = 27 attempts per request\n\
               at a service that is already down.",
        rules: observe.then_some(NAIVE),
        fault: Share::ALL,
        ..healthy
    };
    let governed = Scene {
        name: "governed",
        headline: "stock still fails every call; governed rules arrive",
        text: "The same 3 attempts, but each hop has a retry breaker, and headers along the chain\n\
               let only one hop retry, and none during an outage.",
        rules: Some(GOVERNED),
        fault: Share::ALL,
        seconds: beyond_window(GOVERNED_AFTER_WINDOW),
        closing: governed_closing,
        ..healthy
    };
    let healed = Scene {
        name: "healed",
        headline: "stock recovers, except for 2 % of its calls",
        text: "Once the outage has left the retry breaker's window of 10 s, retries resume\n\
               and mask the remaining failures.",
        fault: REMAINING_FAULT,
        seconds: beyond_window(HEALED_AFTER_WINDOW),
        closing: healed_closing,
        ..healthy
    };
    let queued = Scene {
        name: "queue",
        headline: "stock fails every call again; inventory keeps its orders",
        text: "Inventory hands a failed order over to a durable queue and accepts it. The queue holds the\n\
               orders of a failing service: one delivery per second tests whether it is back.",
        fault: Share::ALL,
        hands_over: true,
        ..healthy
    };
    let observed = observe.then_some(observed);
    let all = [Some(healthy), observed, Some(naive), Some(governed), Some(healed), Some(queued)];
    all.into_iter().flatten().collect()
}

fn amplification(sums: &Sums) -> String {
    let whole = report::total(&sums.seconds);
    let bottom = report::bottom_amplification(&whole).unwrap_or(0.0);
    let success = report::success_percent(&whole).unwrap_or(0.0);
    format!("  => {bottom:.2} attempts at stock per request, {success:.1} % success")
}

fn governed_closing(sums: &Sums) -> String {
    let governed = Governed::of(sums, window());
    let first = governed.first_second_amplification.unwrap_or(0.0);
    let later = governed.after_window_amplification.unwrap_or(0.0);
    format!("  => {first:.2} attempts at stock per request in the first second, {later:.2} after a window")
}

fn healed_closing(sums: &Sums) -> String {
    let healed = Healed::of(sums, window());
    let (Some(retry), Some(success)) = (healed.first_retry_after_s, healed.after_window_success_percent)
    else {
        return amplification(sums);
    };
    let refused = match healed.last_not_retried_after_s {
        Some(last) => format!("no retry blocked after {last:.1} s"),
        None => "no retry blocked".to_owned(),
    };
    let window = window().as_secs();
    format!("  => {refused}; first retry at {retry:.1} s; {success:.1} % success from {window} s on")
}

#[cfg(test)]
mod tests {
    use damper_core::{Mode, Policy, Rule};
    use damper_proto::manifest;

    use super::super::ledger::Second;
    use super::*;

    fn rules(text: &str) -> Vec<Rule> {
        manifest::check(&manifest::parse(text).unwrap()).unwrap().rules
    }

    #[test]
    fn manifests_cover_every_hop_with_equal_patterns() {
        for text in [NAIVE, OBSERVE, GOVERNED] {
            assert_eq!(rules(text).len(), HOPS.len());
            for hop in &HOPS {
                assert_eq!(max_attempts(text, hop).unwrap(), 3, "{}", hop.method);
            }
        }
    }

    #[test]
    fn observed_rules_are_the_naive_ones_but_for_their_mode() {
        for (naive, observed) in rules(NAIVE).iter().zip(&rules(OBSERVE)) {
            let enforced = Policy { mode: Mode::Enforce, ..observed.policy().clone() };
            assert_eq!(observed.policy().mode, Mode::Observe);
            assert_eq!((naive.pattern(), naive.policy()), (observed.pattern(), &enforced));
        }
    }

    #[test]
    fn naive_rules_lack_breaker_and_flags_governed_have_them() {
        for rule in rules(NAIVE) {
            assert_eq!(rule.policy().retry_breaker, None);
            assert!(rule.policy().chain.ignore_retry_flag && rule.policy().chain.ignore_no_more_retry);
        }
        for rule in rules(GOVERNED) {
            assert_eq!(rule.policy().retry_breaker, Some(RetryBreaker::default()));
            assert_eq!(rule.policy().chain, damper_core::Chain::default());
        }
    }

    #[test]
    fn healed_scene_closes_with_last_block_and_first_retry() {
        let second = Second { started: 10, succeeded: 10, ended: 10, ..Second::default() };
        let healed = Sums {
            seconds: vec![second; 12],
            last_not_repeated: Some(Duration::from_millis(9_300)),
            first_repeated: Some(Duration::from_millis(9_900)),
        };
        let refused = "no retry blocked after 9.3 s; first retry at 9.9 s";
        let rest = "100.0 % success from 10 s on";
        assert_eq!(healed_closing(&healed), format!("  => {refused}; {rest}"));
        let never = Sums { last_not_repeated: None, ..healed };
        assert!(healed_closing(&never).contains("=> no retry blocked; first retry"));
    }

    #[test]
    fn scenes_that_need_a_window_outlast_it() {
        for scene in scenes(1, true) {
            let needs_window = matches!(scene.name, "governed" | "healed");
            assert_eq!(Duration::from_secs(scene.seconds) > window(), needs_window, "{}", scene.name);
        }
        assert!(scenes(12, false).iter().all(|scene| scene.seconds >= 12));
    }
}
