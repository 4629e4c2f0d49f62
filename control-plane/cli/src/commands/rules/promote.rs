//! `damper rules promote KEY`: off -> observe -> enforce, one step at a time or to a mode that is named.
//!
//! Only the mode changes. The rule is written at the revision it was read at, so a change that somebody else
//! makes in between is a conflict and not lost.

use clap::Args;
use damper_proto::v1;

use crate::Session;
use crate::client::Client;
use crate::exit::Error;
use crate::filter::{Mode, mode_name};
use crate::key::{self, Key};
use crate::output::message;
use crate::write::WriteArgs;

/// Arguments of `damper rules promote`.
#[derive(Args, Debug)]
pub(crate) struct PromoteArgs {
    #[command(flatten)]
    key: Key,
    /// To this mode, whichever the rule has
    #[arg(long)]
    to: Option<Mode>,
    /// Only where the rule is at this revision
    #[arg(long, value_name = "N")]
    expected_revision: Option<u64>,
    #[command(flatten)]
    write: WriteArgs,
}

/// Moves the rule on.
pub(crate) async fn run(session: &Session, args: PromoteArgs) -> Result<(), Error> {
    let key = args.key.pattern()?;
    let words = key::words(Some(&key));
    let client = Client::connect(&session.server).await?;
    let mut rule = client.rule(key).await?;
    let policy = rule.policy.get_or_insert_default();
    let old = policy.mode();
    let new = args.to.map_or_else(|| next(old), v1::Mode::from);
    policy.set_mode(new);
    let done = format!("{} -> {}", mode_name(old.into()), mode_name(new.into()));
    if old == new {
        message(format_args!("{words} is at {} already", mode_name(old.into())));
    }
    let request = v1::PutRuleRequest {
        expected_revision: Some(args.expected_revision.unwrap_or(rule.revision)),
        rule: Some(rule),
        options: Some(args.write.options()),
    };
    let response = client.answer(client.rules.clone().put_rule(request)).await?;
    super::put::finish(session, &args.write, &response, &done)
}

/// The mode that does one thing more; the last is its own next.
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
    fn each_step_does_one_thing_more() {
        assert_eq!(next(v1::Mode::Off), v1::Mode::Observe);
        assert_eq!(next(v1::Mode::Observe), v1::Mode::Enforce);
        assert_eq!(next(v1::Mode::Enforce), v1::Mode::Enforce);
    }
}
