//! The fault switch: share of calls that stock fails, and its client for another terminal.
//!
//! The running demo serves `shop.v1.Faults` on loopback; `damper demo fault 5%` is its client. The seed of
//! the demo decides which calls fail, so two runs with one seed are equal.

use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, time::Duration};

use anyhow::Context as _;
use tonic::transport::Endpoint;
use tonic::{Request, Response, Status};

use super::shop::faults_client::FaultsClient;
use super::shop::faults_server::Faults;
use super::shop::{SetFaultRequest, SetFaultResponse};
use super::terminal::Announcer;
use crate::error::CliError;

const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// A share of calls in hundredths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    bp: u32,
}

/// Fails a share of calls at random.
#[derive(Debug)]
pub(super) struct Switch {
    share_bp: AtomicU32,
    draws: Mutex<fastrand::Rng>,
}

/// The switch as a service of the demo.
#[derive(Debug)]
pub(super) struct Service {
    switch: Arc<Switch>,
    announcer: Announcer,
}

impl Share {
    const MAX_BP: u32 = 10_000;

    pub(super) const NONE: Self = Self { bp: 0 };
    pub(super) const ALL: Self = Self { bp: Self::MAX_BP };

    pub(super) const fn of_bp(bp: u32) -> Option<Self> {
        if bp <= Self::MAX_BP { Some(Self { bp }) } else { None }
    }

    pub(super) fn percent(self) -> f64 {
        f64::from(self.bp) / 100.0
    }
}

impl FromStr for Share {
    type Err = String;

    /// `5%`, `5`, `0.25%`: at most two decimals.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || format!("`{text}`: must be between 0% and 100% with at most two decimals");
        let number = text.strip_suffix('%').unwrap_or(text).trim_end();
        let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(decimals) || decimals.len() > 2 || whole.len() > 3 {
            return Err(refused());
        }
        let bp = format!("{whole}{decimals:0<2}").parse().map_err(|_| refused())?;
        Self::of_bp(bp).ok_or_else(refused)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NONE => f.write_str("none"),
            Self::ALL => f.write_str("all"),
            share => write!(f, "{} %", share.percent()),
        }
    }
}

impl Switch {
    pub(super) fn new(seed: u64) -> Self {
        Self { share_bp: AtomicU32::new(Share::NONE.bp), draws: Mutex::new(fastrand::Rng::with_seed(seed)) }
    }

    /// Sets the share and returns the previous one.
    pub(super) fn set(&self, share: Share) -> Share {
        Share { bp: self.share_bp.swap(share.bp, Ordering::Relaxed) }
    }

    /// True if the next call fails.
    pub(super) fn fails(&self) -> bool {
        let mut draws = self.draws.lock().unwrap_or_else(PoisonError::into_inner);
        draws.u32(0..Share::MAX_BP) < self.share_bp.load(Ordering::Relaxed)
    }
}

impl Service {
    pub(super) fn new(switch: Arc<Switch>, announcer: Announcer) -> Self {
        Self { switch, announcer }
    }
}

#[tonic::async_trait]
impl Faults for Service {
    async fn set_fault(
        &self,
        request: Request<SetFaultRequest>,
    ) -> Result<Response<SetFaultResponse>, Status> {
        let bp = request.into_inner().share_bp;
        let share = Share::of_bp(bp).ok_or_else(|| {
            Status::invalid_argument(format!("share_bp: must be at most {}, not {bp}", Share::MAX_BP))
        })?;
        let previous_bp = self.switch.set(share).bp;
        self.announcer.fault(share);
        Ok(Response::new(SetFaultResponse { previous_bp }))
    }
}

/// Sets the fault of a demo in another terminal.
pub(super) async fn set_in_running_demo(control: SocketAddr, share: Share) -> anyhow::Result<()> {
    let channel = Endpoint::from_shared(format!("http://{control}"))?
        .connect_timeout(ANSWER_WITHIN)
        .timeout(ANSWER_WITHIN)
        .connect()
        .await
        .map_err(|_| {
            CliError::Unavailable(format!("no demo answers on {control}; start one with `damper demo`"))
        })?;
    let request = SetFaultRequest { share_bp: share.bp };
    let answer = FaultsClient::new(channel)
        .set_fault(request)
        .await
        .with_context(|| format!("the server on {control} is not a running `damper demo`; set --control to the address that the demo shows"))?;
    let previous = Share { bp: answer.into_inner().previous_bp };
    println!("the demo's service `stock` now fails {share} of the calls to it (before: {previous})");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_read_as_people_write_percentages() {
        for (text, bp) in [("5%", 500), ("5", 500), ("0.25%", 25), ("2.5 %", 250), ("100%", 10_000), ("0", 0)]
        {
            assert_eq!(text.parse(), Ok(Share { bp }), "{text}");
        }
    }

    #[test]
    fn invalid_share_is_rejected_with_value_and_bounds() {
        for text in ["", "%", "-1%", "101%", "100.01", "NaN", "1e1", "5.123%", ".5", "5.", "+5", "all"] {
            let error = text.parse::<Share>().unwrap_err();
            assert!(error.contains(&format!("`{text}`")) && error.contains("100%"), "{error}");
        }
    }

    #[test]
    fn the_switch_fails_the_share_it_is_set_to() {
        let switch = Switch::new(7);
        let failed = |switch: &Switch| (0..10_000).filter(|_| switch.fails()).count();
        assert_eq!(failed(&switch), 0);
        assert_eq!(switch.set(Share::ALL), Share::NONE);
        assert_eq!(failed(&switch), 10_000);
        switch.set(Share { bp: 200 });
        assert!((120..=280).contains(&failed(&switch)));
    }
}
