//! Differences between two versions of a rule, guard or queue, setting by setting.
//!
//! `damper_proto::manifest` compares; this file adds key, place and colours.

use damper_proto::manifest::{Differing, Settings};
use damper_proto::v1;
use serde::Serialize;

use crate::error::CliError;
use crate::input::manifests::ManifestItem;
use crate::output::{self, Format};

const UNSET: &str = "unset";

/// A rule, guard or queue that differs.
#[derive(Debug, Serialize)]
pub(crate) struct Difference {
    change: &'static str,
    kind: &'static str,
    /// `None` for a queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<v1::Pattern>,
    /// Name of a queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    /// Kind and key, or name.
    #[serde(skip)]
    words: String,
    /// Place of the new version.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<String>,
    fields: Vec<Differing>,
}

/// Prints the differences and returns the result; differences and errors have their own exit statuses.
pub(crate) fn show(format: Format, found: Result<Vec<Difference>, CliError>) -> Result<(), CliError> {
    let of_diff = |error| CliError::OfDiff(Box::new(error));
    let differences = found.map_err(of_diff)?;
    let colours = output::colours();
    let text = || differences.iter().map(|difference| difference.text(colours)).collect();
    output::show(format, &differences, text).map_err(of_diff)?;
    if differences.is_empty() { Ok(()) } else { Err(CliError::Differs) }
}

impl Difference {
    /// Compares two versions; `None` as input = does not exist.
    pub(crate) fn between(
        old: Option<&ManifestItem>,
        new: Option<&ManifestItem>,
        origin: Option<String>,
    ) -> Result<Option<Self>, CliError> {
        // A version that this client cannot read, from a newer server, has no named settings.
        let were = old.and_then(|item| settings(item).ok()).unwrap_or_default();
        let are = new.map(settings).transpose()?.unwrap_or_default();
        let fields = were.differing(are);
        let change = match (old, new) {
            (None, _) => "created",
            (_, None) => "deleted",
            _ => "updated",
        };
        let differs = !fields.is_empty() || old.is_some() != new.is_some();
        let Some(item) = new.or(old).filter(|_| differs) else { return Ok(None) };
        Ok(Some(Self {
            change,
            kind: item.kind(),
            key: item.key().cloned(),
            queue: item.queue().map(|queue| queue.name.clone()),
            words: item.words(),
            origin,
            fields,
        }))
    }

    fn text(&self, colours: bool) -> String {
        let (mark, colour) = match self.change {
            "created" => ('+', "32"),
            "deleted" => ('-', "31"),
            _ => ('~', "33"),
        };
        let mut text = paint(colours, colour, &format!("{mark} {}", self.words));
        text.extend(self.origin.as_ref().map(|origin| format!("  ({origin})")));
        text.push('\n');
        for Differing { path, old, new } in &self.fields {
            let old = paint(colours, "31", old.as_deref().unwrap_or(UNSET));
            let new = paint(colours, "32", new.as_deref().unwrap_or(UNSET));
            text.push_str(&match self.change {
                "created" => format!("    {path}: {new}\n"),
                "deleted" => format!("    {path}: {old}\n"),
                _ => format!("    {path}: {old} -> {new}\n"),
            });
        }
        text
    }
}

fn settings(item: &ManifestItem) -> Result<Settings, CliError> {
    let settings = match item {
        ManifestItem::Rule(rule) => Settings::of_rule(rule),
        ManifestItem::Guard(guard) => Settings::of_guard(guard),
        ManifestItem::Queue(queue) => Settings::of_queue(queue),
    };
    settings.map_err(|faults| {
        let key = item.words();
        CliError::Data(faults.iter().map(|fault| format!("{key}: {fault}")).collect())
    })
}

fn paint(colours: bool, colour: &str, text: &str) -> String {
    if colours { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
}
