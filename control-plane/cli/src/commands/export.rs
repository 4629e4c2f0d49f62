//! `damper export`: all rules, guards and queues at one revision, as manifests.
//!
//! The second line of the YAML contains revision and time. The rest depends on the resources alone, so that
//! exports can be compared line by line and kept under version control.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args;
use damper_proto::manifest::{self, Manifest};
use damper_proto::v1::{self, object};

use crate::error::{CliError, print_message};
use crate::output::figures::many;
use crate::output::{Format, data};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// First line of the YAML; JSON has no comments.
const HEADER: &str =
    "# All rules, guards and queues of a Damper control plane. Restore with `damper import`.\n";

/// Arguments of `damper export`.
#[derive(Args, Debug)]
#[command(after_help = "YAML unless -o json is given. Fails on a rule that the server cannot read.")]
pub(crate) struct ExportArgs {
    /// Export the rules, guards and queues as they were at this revision of the store [default: the newest]
    #[arg(long, value_name = "REV")]
    revision: Option<u64>,
    /// File for the export; an existing file is replaced once the export is complete [default: standard
    /// output]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Writes the manifests.
pub(crate) async fn run(session: &Session, args: ExportArgs) -> Result<(), CliError> {
    let client = Client::connect(&session.server).await?;
    let request = v1::ExportRequest { revision: args.revision };
    let mut messages = client.answer(client.history.clone().export(request)).await?;
    let (mut announced, mut manifests) = (None, Vec::new());
    while let Some(message) = messages.message().await.map_err(|status| client.failure(&status))? {
        announced = Some((message.revision, message.total));
        for object in message.objects {
            manifests.push(manifest_of(object)?);
        }
    }
    let Some((revision, total)) = announced else {
        return Err(CliError::Defect("the server ended the export before its first message".to_owned()));
    };
    check_whole(manifests.len() as u64, total)?;
    let text = match session.format {
        Format::Json => manifest::to_json(&manifests) + "\n",
        Format::Table | Format::Yaml => {
            let at = prost_types::Timestamp { nanos: 0, ..SystemTime::now().into() };
            format!("{HEADER}# Revision {revision}, exported at {at}.\n{}", manifest::to_yaml(&manifests))
        }
    };
    match &args.file {
        None => data(&text)?,
        Some(file) => replace(file, &text).map_err(CliError::io(file.display()))?,
    }
    print_message(format_args!("revision {revision}: {}", many(manifests.len(), "manifest")));
    Ok(())
}

/// Errors on an incomplete export. An older server sends no total: 0.
fn check_whole(came: u64, total: u64) -> Result<(), CliError> {
    if total == 0 || came == total {
        return Ok(());
    }
    let problem = format!("received {came} of {total} manifests");
    Err(CliError::Unavailable(format!("incomplete export: {problem}; nothing was written")))
}

/// Errors on unknown kinds: they would be lost.
fn manifest_of(object: v1::Object) -> Result<Manifest, CliError> {
    match object.kind {
        Some(object::Kind::Rule(rule)) => Ok(rule.into()),
        Some(object::Kind::Guard(guard)) => Ok(guard.into()),
        Some(object::Kind::Queue(queue)) => Ok(queue.into()),
        Some(object::Kind::Kill(_) | object::Kind::Token(_) | object::Kind::Jobs(_)) | None => {
            Err(CliError::Defect("the export contains an unknown kind".to_owned()))
        }
    }
}

/// Replaces the file at once.
fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut new = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
    new.write_all(text.as_bytes())?;
    new.as_file().sync_all()?;
    new.persist(file)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_an_export_is_no_backup() {
        assert_eq!(check_whole(2, 3).unwrap_err().code(), 69);
        assert!(check_whole(3, 3).is_ok() && check_whole(0, 0).is_ok());
        assert!(check_whole(3, 0).is_ok(), "a server that does not tell");
    }
}
