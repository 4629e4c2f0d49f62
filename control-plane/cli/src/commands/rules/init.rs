//! `damper rules init KEY`: a proposed rule in observe mode, with values from recent measurements.
//!
//! The output is a manifest with comments on the origin of each value, for a file or for `damper apply -f -`.
//! The command writes nothing to the server.

use damper_proto::{manifest, v1};

use crate::error::{CliError, print_message};
use crate::input::key::Key;
use crate::output::{self, Format, printable};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper rules init`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "The manifest is YAML with comments, or with -o json a list; both are what apply reads:\n  \
    damper rules init checkout '*' inventory inventory.v1.Inventory/Get | damper apply -f -"
)]
pub(crate) struct InitArgs {
    #[command(flatten)]
    key: Key,
}

/// Prints the proposal.
pub(crate) async fn run(session: &Session, args: InitArgs) -> Result<(), CliError> {
    let key = args.key.pattern()?;
    let client = Client::connect(&session.server).await?;
    let request = v1::ProposeRuleRequest { key: Some(key) };
    let v1::ProposeRuleResponse { rule, reasons } =
        client.answer(client.rules.clone().propose_rule(request)).await?;
    let rule = rule.ok_or_else(|| CliError::Defect("the server proposed no rule".to_owned()))?;
    if session.format == Format::Json {
        reasons.iter().for_each(|reason| print_message(printable(reason)));
        return output::data(&(manifest::to_json(&[rule]) + "\n"));
    }
    output::data(&commented(&rule, &reasons))
}

/// Returns the manifest after comments on the origin of its values.
fn commented(rule: &v1::Rule, reasons: &[String]) -> String {
    let comments: String = reasons.iter().map(|reason| format!("# {}\n", printable(reason))).collect();
    comments + &manifest::to_yaml(std::slice::from_ref(rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_do_not_keep_the_manifest_from_being_read() {
        let name = || "a".to_owned();
        let key = v1::Pattern {
            caller_service: name(),
            caller_cluster: "*".to_owned(),
            callee_service: name(),
            callee_method: "a.B/C".to_owned(),
        };
        let policy = v1::Policy { mode: v1::Mode::Observe.into(), ..Default::default() };
        let rule = v1::Rule { key: Some(key), policy: Some(policy), ..Default::default() };
        let text = commented(&rule, &["policy.timeout: { odd: [\nkind: Guard".to_owned()]);
        let documents = manifest::parse(&text).unwrap();
        assert_eq!(documents.len(), 1);
        assert_eq!(documents[0].manifest, manifest::Manifest::Rule(rule));
    }
}
