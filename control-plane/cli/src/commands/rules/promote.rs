//! `damper rules promote KEY`: off -> observe -> enforce, one step or to a given mode.
//!
//! Only the mode changes. The rule is written at the revision at which it was read, so a concurrent change is
//! a conflict. From observe to enforce the command reports what the rule would have done in the last minute.

use clap::Args;
use damper_proto::v1;

use crate::error::{CliError, print_message};
use crate::input::filter::{Mode, mode_name};
use crate::input::key::{self, Key};
use crate::output::figures::{many, rate};
use crate::remote::client::Client;
use crate::remote::session::Session;
use crate::remote::write::WriteArgs;

/// Arguments of `damper rules promote`.
#[derive(Args, Debug)]
pub(crate) struct PromoteArgs {
    #[command(flatten)]
    key: Key,
    /// New mode of the rule [default: the next one of off, observe, enforce]
    #[arg(long)]
    to: Option<Mode>,
    /// Change the rule only if it is still at this revision
    #[arg(long, value_name = "N")]
    expected_revision: Option<u64>,
    #[command(flatten)]
    write: WriteArgs,
}

/// Advances the rule.
pub(crate) async fn run(session: &Session, args: PromoteArgs) -> Result<(), CliError> {
    let key = args.key.pattern()?;
    let words = key::words(Some(&key));
    let client = Client::connect(&session.server).await?;
    let mut rule = client.rule(key).await?;
    let policy = rule.policy.get_or_insert_default();
    let old = policy.mode();
    let new = args.to.map_or_else(|| next(old), v1::Mode::from);
    policy.set_mode(new);
    let done = format!("{} -> {}", mode_name(old.into()), mode_name(new.into()));
    if (old, new) == (v1::Mode::Observe, v1::Mode::Enforce) {
        print_message(observed(&client, rule.key.as_ref()).await?);
    }
    if old == new {
        print_message(format_args!("{words} is already at {}", mode_name(old.into())));
    }
    let request = v1::PutRuleRequest {
        expected_revision: Some(args.expected_revision.unwrap_or(rule.revision)),
        rule: Some(rule),
        options: Some(args.write.options()),
    };
    let response = client.answer(client.rules.clone().put_rule(request)).await?;
    super::put::finish(session, &client, &args.write, &response, &done).await
}

/// Returns what the rule would have done in the last minute on its routes.
async fn observed(client: &Client, key: Option<&v1::Pattern>) -> Result<String, CliError> {
    let minute = prost_types::Duration { seconds: 60, nanos: 0 };
    let asked = v1::ListRoutesRequest { window: Some(minute), ..Default::default() };
    let mut routes = client.all_routes(&asked).await?.routes;
    routes.retain(|route| route.rule.as_ref() == key);
    Ok(summary(&routes))
}

fn summary(routes: &[v1::RouteStats]) -> String {
    let sum = |of: fn(&v1::RouteStats) -> f64| routes.iter().map(of).sum::<f64>();
    let (calls, attempts) = (sum(|route| route.calls_per_s), sum(|route| route.attempts_per_s));
    if calls <= 0.0 {
        return "no call in the last minute: the effect is unknown".to_owned();
    }
    let would = |fate: v1::Fate| {
        let rates = routes.iter().flat_map(|route| &route.fates);
        rates.filter(|rate| rate.would && rate.fate() == fate).map(|rate| rate.per_s).sum::<f64>()
    };
    let (retries, hedges) = (would(v1::Fate::Retry), sum(|route| route.would_hedges_per_s));
    let blocked: f64 = [v1::Fate::RetryBreaker, v1::Fate::Budget].map(would).iter().sum();
    format!(
        "in the last minute it would have sent {} retries/s and {} hedges/s for {} calls/s on {}: amplification \
         {:.2} at least, now {:.2}; breaker and budget would have blocked {}/s",
        rate(retries),
        rate(hedges),
        rate(calls),
        many(routes.len(), "route"),
        (attempts + retries + hedges) / calls,
        attempts / calls,
        rate(blocked)
    )
}

/// Returns the next mode; the last mode is its own next.
fn next(mode: v1::Mode) -> v1::Mode {
    match mode {
        v1::Mode::Unspecified | v1::Mode::Off => v1::Mode::Observe,
        v1::Mode::Observe | v1::Mode::Enforce => v1::Mode::Enforce,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observed_effect_sums_the_routes_of_the_rule() {
        let fate = |fate: v1::Fate, would, per_s| v1::FateRate { fate: fate.into(), would, per_s, total: 9 };
        let route = v1::RouteStats {
            calls_per_s: 50.0,
            attempts_per_s: 50.0,
            would_hedges_per_s: 1.0,
            fates: vec![
                fate(v1::Fate::Retry, true, 4.0),
                fate(v1::Fate::RetryBreaker, true, 2.0),
                fate(v1::Fate::RetryBreaker, false, 7.0),
            ],
            ..Default::default()
        };
        assert_eq!(
            summary(&[route.clone(), route]),
            "in the last minute it would have sent 8.0 retries/s and 2.0 hedges/s for 100.0 calls/s on 2 routes: \
             amplification 1.10 at least, now 1.00; breaker and budget would have blocked 4.0/s"
        );
        assert!(summary(&[v1::RouteStats::default()]).contains("the effect is unknown"));
    }

    #[test]
    fn each_step_does_one_thing_more() {
        assert_eq!(next(v1::Mode::Off), v1::Mode::Observe);
        assert_eq!(next(v1::Mode::Observe), v1::Mode::Enforce);
        assert_eq!(next(v1::Mode::Enforce), v1::Mode::Enforce);
    }
}
