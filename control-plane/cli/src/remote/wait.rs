//! `--wait`: waits until clients have acknowledged a write.
//!
//! The write is stored in any case. A missed delivery is a result of its own, with its own exit status and
//! the clients that lack the change. On a terminal one line is updated while waiting; a file or pipe gets the
//! last one only.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use clap::Args;
use damper_control_plane::{CONVERGENCE_SHARE, CONVERGENCE_WITHIN};
use damper_core::fault::Millis;
use damper_proto::v1::{self, laggard::Reason};

use crate::error::{CliError, print_message};
use crate::output::{printable, warn_missing_replicas};
use crate::remote::client::Client;

/// Clears the line and returns to its start.
const AGAIN: &str = "\r\x1b[2K";

/// Options of commands that can wait for delivery.
#[derive(Args, Debug)]
#[command(next_help_heading = "Proof of delivery")]
pub(crate) struct WaitArgs {
    /// Wait until all affected processes, or a share of them such as 90%, have confirmed the change
    /// [default: return when the change is stored]
    #[arg(long, value_name = "SHARE", num_args = 0..=1, default_missing_value = "100%", value_parser = share)]
    wait: Option<f64>,
    /// Longest time for --wait; after it the command fails
    #[arg(long, value_name = "DURATION", default_value = "30s", requires = "wait", value_parser = within)]
    timeout: Duration,
}

impl WaitArgs {
    /// Waits for the delivery of a revision if requested; `None` = nothing was written.
    pub(crate) async fn delivered(&self, client: &Client, revision: Option<u64>) -> Result<(), CliError> {
        let Some(share) = self.wait else { return Ok(()) };
        let Some(revision) = revision else {
            print_message("nothing was written, nothing to wait for");
            return Ok(());
        };
        let last = match self.watch(client, revision, share).await {
            Ok(last) => last,
            Err(error) => {
                let written = format!("revision {revision} is written, delivery unknown");
                return Err(CliError::Undelivered(format!("{written}: {error}")));
            }
        };
        warn_missing_replicas(&last.missing_replicas);
        report(&last, share, client.connected_at.elapsed())
    }

    /// True if waiting is requested.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wait.is_some()
    }

    /// Returns the last message; reconnects to another server if one is lost.
    async fn watch(&self, client: &Client, revision: u64, share: f64) -> Result<v1::Convergence, CliError> {
        let begun = Instant::now();
        let mut current = client.clone();
        loop {
            let within = self.timeout.saturating_sub(begun.elapsed()).max(*CONVERGENCE_WITHIN.start());
            let request = v1::WatchConvergenceRequest {
                revision,
                share: Some(share),
                within: prost_types::Duration::try_from(within).ok(),
            };
            let mut received = false;
            match self.follow(&current, request, client.connected_at, &mut received).await {
                Err(broken @ CliError::Unavailable(_)) => current = current.next(received, broken).await?,
                ended => return ended,
            }
        }
    }

    /// Returns the last message of one server; shows earlier ones on a terminal.
    async fn follow(
        &self,
        client: &Client,
        request: v1::WatchConvergenceRequest,
        since: Instant,
        received: &mut bool,
    ) -> Result<v1::Convergence, CliError> {
        let mut stream = client.answer(client.fleet.clone().watch_convergence(request)).await?;
        let live = io::stderr().is_terminal();
        loop {
            // The server ends the stream in time; pings detect a dead server.
            let next = stream.message().await.map_err(|status| client.failure(&status))?;
            let Some(state) = next else {
                return Err(CliError::Unavailable("the server ended the stream".to_owned()));
            };
            *received = true;
            if live {
                let _ = write!(io::stderr(), "{AGAIN}{}", line(&state, since.elapsed()))
                    .and_then(|()| io::stderr().flush());
            }
            if state.done || state.timed_out || state.hopeless {
                if live {
                    let _ = write!(io::stderr(), "{AGAIN}");
                }
                return Ok(state);
            }
        }
    }
}

/// Reports the result, with the clients that lack the change.
fn report(last: &v1::Convergence, share: f64, since: Duration) -> Result<(), CliError> {
    let revision = last.revision;
    if last.affected == 0 && last.done {
        return Err(CliError::Undelivered(format!(
            "revision {revision} is written, but affects no connected client"
        )));
    }
    print_message(line(last, since));
    if last.done {
        return Ok(());
    }
    for laggard in &last.laggards {
        print_message(format_args!("  {}", printable(&lags(laggard))));
    }
    let v1::Convergence { refused, lacking_features, waiting, left, .. } = last;
    let all = refused + lacking_features + waiting + left;
    let named = u32::try_from(last.laggards.len()).unwrap_or(u32::MAX);
    if all > named {
        print_message(format_args!("  and {} more", all - named));
    }
    let share = percent(share);
    Err(CliError::Undelivered(match last.hopeless {
        true => format!(
            "revision {revision} is written, but cannot be delivered to {share} of the affected clients: too many rejected it or lack a feature"
        ),
        false => format!(
            "revision {revision} is written, but was not delivered to {share} of the affected clients in time"
        ),
    }))
}

/// Progress since the start of the command.
fn line(state: &v1::Convergence, since: Duration) -> String {
    let v1::Convergence { affected, acknowledged, refused, lacking_features, left, .. } = state;
    let within = if state.done { "within" } else { "after" };
    let others = [(refused, "rejected it"), (lacking_features, "lack a feature"), (left, "left")];
    let others: String =
        others.iter().filter(|(n, _)| **n > 0).map(|(n, what)| format!(", {n} {what}")).collect();
    format!("acknowledged {acknowledged} of {affected} {within} {}{others}", time(since))
}

fn time(elapsed: Duration) -> String {
    match elapsed.as_millis() {
        ms @ 0..10_000 => format!("{ms} ms"),
        _ => format!("{} s", elapsed.as_secs()),
    }
}

fn lags(laggard: &v1::Laggard) -> String {
    let v1::Identity { service, cluster, instance } = laggard.identity.clone().unwrap_or_default();
    let why = match laggard.reason() {
        Reason::Refused => format!("rejected {}", laggard.detail),
        Reason::LackingFeature => format!("lacks {}", laggard.detail),
        Reason::Left => "disconnected before it acknowledged".to_owned(),
        Reason::Waiting | Reason::Unspecified => {
            format!("has not acknowledged, at revision {}", laggard.acknowledged_revision)
        }
    };
    format!("{service} {cluster} {instance}: {why}")
}

fn percent(share: f64) -> String {
    format!("{}%", (share * 1e4).round() / 1e2)
}

/// `99%`, `99.5%` or `0.99`.
fn share(text: &str) -> Result<f64, String> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse(),
    };
    let share = share.ok().filter(|share| CONVERGENCE_SHARE.contains(share));
    share.ok_or_else(|| {
        let (least, most) = (percent(*CONVERGENCE_SHARE.start()), percent(*CONVERGENCE_SHARE.end()));
        format!("must be between {least} and {most}; 99% and 0.99 are equal")
    })
}

fn within(text: &str) -> Result<Duration, String> {
    let within = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if CONVERGENCE_WITHIN.contains(&within) {
        return Ok(within);
    }
    Err(format!(
        "must be between {} and {}",
        Millis(*CONVERGENCE_WITHIN.start()),
        Millis(*CONVERGENCE_WITHIN.end())
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_percentage_or_a_fraction() {
        for (text, expected) in [("100%", 1.0), ("99%", 0.99), ("99.5 %", 0.995), ("0.5", 0.5), ("1", 1.0)] {
            assert_eq!(share(text), Ok(expected), "{text}");
        }
        for bad in ["", "%", "0", "0.5%", "101%", "2", "NaN", "-1", "all"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn timeout_has_the_range_of_the_server() {
        assert_eq!(within("30s"), Ok(Duration::from_secs(30)));
        for bad in ["99ms", "11m", "soon"] {
            assert!(within(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn result_of_waiting_is_reported() {
        let since = Duration::from_micros(12_345);
        let mut state = v1::Convergence { revision: 7, affected: 4, acknowledged: 4, ..Default::default() };
        state.done = true;
        assert_eq!(line(&state, since), "acknowledged 4 of 4 within 12 ms");
        assert!(report(&state, 1.0, since).is_ok());
        state =
            v1::Convergence { acknowledged: 2, refused: 1, left: 1, done: false, timed_out: true, ..state };
        assert_eq!(line(&state, since), "acknowledged 2 of 4 after 12 ms, 1 rejected it, 1 left");
        let error = report(&state, 0.995, since).unwrap_err();
        assert_eq!(error.code(), 1);
        assert!(error.to_string().contains("not delivered to 99.5%"), "{error}");
        state = v1::Convergence { timed_out: false, hopeless: true, ..state };
        let error = report(&state, 0.995, since).unwrap_err();
        assert!(error.to_string().contains("too many rejected it or lack a feature"), "{error}");
        let nobody = v1::Convergence { done: true, ..Default::default() };
        assert!(report(&nobody, 1.0, since).unwrap_err().to_string().contains("affects no connected client"));
    }

    #[test]
    fn laggards_have_a_reason() {
        let laggard = |reason: Reason, detail: &str| v1::Laggard {
            acknowledged_revision: 3,
            reason: reason.into(),
            detail: detail.to_owned(),
            ..Default::default()
        };
        for (told, expected) in [
            (laggard(Reason::Waiting, ""), "has not acknowledged, at revision 3"),
            (laggard(Reason::Refused, "rule a: bad"), "rejected rule a: bad"),
            (laggard(Reason::LackingFeature, "hedge"), "lacks hedge"),
            (laggard(Reason::Left, ""), "disconnected before it acknowledged"),
        ] {
            assert!(lags(&told).ends_with(expected), "{}", lags(&told));
        }
    }
}
