//! `damper token create`: prints only the token on stdout, for pipes, or writes it to a file that only its
//! owner can read. The file is opened before the token is created, so that an unwritable folder is an error
//! first.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use damper_proto::v1;
use tempfile::NamedTempFile;

use super::{ChangeArgs, Role, end, role_name};
use crate::error::{CliError, print_message};
use crate::output::{printable, show};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper token create`.
#[derive(Args, Debug)]
pub(crate) struct CreateArgs {
    /// Name of the holder or purpose
    name: String,
    /// Role of the token
    #[arg(long)]
    role: Role,
    /// Limit the token to this caller, an exact name or PREFIX*: an agent may connect as this service only,
    /// an editor may write only rules with this caller; repeatable
    #[arg(long, value_name = "SERVICE")]
    caller: Vec<String>,
    /// Limit the token to this callee, an exact name or PREFIX*: only rules, guards and kill switches for it
    /// can be written; repeatable
    #[arg(long, value_name = "SERVICE")]
    callee: Vec<String>,
    /// Lifetime of the token, 1m to 3650d, or never
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = time_to_live)]
    ttl: TimeToLive,
    /// Write the token to this new file (mode 0600) instead of stdout
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Overwrite an existing --file; the old token in it stays valid until it is revoked
    #[arg(long, requires = "file")]
    replace: bool,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeToLive {
    For(Duration),
    Ever,
}

fn time_to_live(text: &str) -> Result<TimeToLive, String> {
    if text == "never" {
        return Ok(TimeToLive::Ever);
    }
    let time = humantime::parse_duration(text);
    time.map(TimeToLive::For).map_err(|_| "must be a duration such as 90d, or never".to_owned())
}

/// Creates a token.
pub(crate) async fn run(session: &Session, args: CreateArgs) -> Result<(), CliError> {
    let CreateArgs { name, role, caller: callers, callee: callees, ttl, file, replace, change } = args;
    let has_callers = !callers.is_empty();
    let limited = has_callers || !callees.is_empty();
    let time_to_live = match ttl {
        TimeToLive::Ever => None,
        TimeToLive::For(time) => Some(
            prost_types::Duration::try_from(time)
                .map_err(|_| CliError::data("--ttl: must be between 1m and 3650d"))?,
        ),
    };
    let request = v1::CreateTokenRequest {
        name,
        role: role.wire().into(),
        scope: limited.then_some(v1::Scope { callers, callees }),
        time_to_live,
        never_expires: ttl == TimeToLive::Ever,
        options: Some(change.options()),
    };
    let client = Client::connect(&session.server).await?;
    let kept =
        file.as_deref().filter(|_| !change.dry_run).map(|file| Kept::new(file, replace)).transpose()?;
    let mut response = client.answer_in(client.tokens.clone().create_token(request), &in_options).await?;
    let is_new = !response.secret.is_empty();
    if let Some(kept) = kept.filter(|_| is_new) {
        kept.write(&std::mem::take(&mut response.secret))?;
    }
    let secret = || if response.secret.is_empty() { String::new() } else { format!("{}\n", response.secret) };
    show(session.format, &response, secret)?;
    if role == Role::Agent && !has_callers {
        print_message("warning: without --caller this agent can act as any service");
    }
    let token = response.token.clone().unwrap_or_default();
    let what = format!("{} {}, valid until {}", role_name(token.role()), token.name, end(token.expires_at));
    match (change.dry_run, is_new) {
        (true, _) => print_message(format_args!("{} (dry run: nothing was changed)", printable(&what))),
        (_, false) => print_message(format_args!(
            "{}: this request was completed before; its token {} is not shown again",
            printable(&what),
            token.id
        )),
        (_, true) => print_message(format_args!(
            "{}; its id is {}. The token is not shown again",
            printable(&what),
            token.id
        )),
    }
    Ok(())
}

/// Returns a temporary file for a token in the folder of its path.
struct Kept<'a> {
    path: &'a Path,
    replace: bool,
    file: NamedTempFile,
}

impl<'a> Kept<'a> {
    fn new(path: &'a Path, replace: bool) -> Result<Self, CliError> {
        if !replace && path.exists() {
            let exists =
                io::Error::new(io::ErrorKind::AlreadyExists, "already exists; --replace overwrites it");
            return Err(CliError::io(path.display())(exists));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        // Its mode is 0600.
        let file =
            NamedTempFile::new_in(folder.unwrap_or(Path::new("."))).map_err(CliError::io(path.display()))?;
        Ok(Self { path, replace, file })
    }

    fn write(mut self, secret: &str) -> Result<(), CliError> {
        let file = self.file.as_file_mut();
        let written = file.write_all(format!("{secret}\n").as_bytes()).and_then(|()| file.sync_all());
        written.map_err(CliError::io(self.path.display()))?;
        let moved = match self.replace {
            true => self.file.persist(self.path),
            false => self.file.persist_noclobber(self.path),
        };
        moved.map(drop).map_err(|failed| {
            // The token exists, and this file has the only copy.
            let (path, error) = (self.path.display(), failed.error);
            match failed.file.keep() {
                Ok((_, kept)) => {
                    CliError::io(format_args!("{path} (the token is in {})", kept.display()))(error)
                }
                Err(_) => CliError::io(path)(error),
            }
        })
    }
}

/// Returns the option of a field.
fn in_options(field: &str) -> String {
    let (whole, place) = field.split_once('[').unwrap_or((field, ""));
    let option = match whole {
        "name" => "NAME",
        "role" => "--role",
        "scope" | "scope.callers" => "--caller",
        "scope.callees" => "--callee",
        "time_to_live" => "--ttl",
        _ => return crate::error::as_is(field),
    };
    if place.is_empty() { option.to_owned() } else { format!("{option} [{place}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_a_time_or_for_ever() {
        assert_eq!(time_to_live("never"), Ok(TimeToLive::Ever));
        assert_eq!(time_to_live("90d"), Ok(TimeToLive::For(Duration::from_secs(90 * 86_400))));
        for bad in ["", "ever", "90"] {
            assert!(time_to_live(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn fault_names_its_option() {
        assert_eq!(in_options("scope.callers[2]"), "--caller [2]");
        assert_eq!(in_options("time_to_live"), "--ttl");
        assert_eq!(in_options("options.reason"), "--reason");
    }
}
