//! `damper proxy try`: a command whose gRPC calls go through a proxy, for the first minutes with Damper.
//!
//! The command finds the proxy by the variables of gRPC's libraries for HTTP CONNECT. Only the callees that
//! are named, and names within a cluster, are governed. The proxy ends with the command and has its exit
//! status.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::pin::pin;
use std::process::ExitStatus;
use std::time::Duration;

use clap::Args;
use damper_proxy::{Config, ReadConfig};
use serde_json::{Value, json};
use tokio::process::Command;

#[cfg(unix)]
use super::group::Group;
use super::stop::{Signals, Stop};
use super::{bind, connect, listening};
use crate::commands::admin_port::log_to_stderr;
use crate::error::{CliError, print_message};
use crate::remote::session::Session;

/// Time for rules before the command starts. Without them its calls are sent once.
const RULES_WITHIN: Duration = Duration::from_secs(2);
/// Time for the command to end after SIGTERM.
const END_WITHIN: Duration = Duration::from_secs(10);

/// Arguments of `damper proxy try`.
#[derive(Args, Debug)]
#[command(
    after_help = "Sets HTTPS_PROXY (Go), grpc_proxy (Python, C++, Node) and JAVA_TOOL_OPTIONS (Java). \
    Go and Java ignore it for calls to localhost and 127.0.0.1: dial another name."
)]
pub(super) struct TryArgs {
    /// Name of the service that your command runs [default: the environment variable DAMPER_SERVICE]
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Address that your command dials for a callee, then the callee's real address; the first label of the
    /// dialled host is the callee's name. Repeatable
    #[arg(long = "callee", value_name = "HOST:PORT=HOST:PORT", value_parser = pair)]
    callees: Vec<(String, String)>,
    /// Address that callers dial, then the address on which your command listens
    #[arg(long, value_name = "ADDRESS:PORT=ADDRESS:PORT", value_parser = pair)]
    inbound: Option<(String, String)>,
    /// The command, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (before, after) = text.split_once('=').ok_or("must be two addresses with `=` between them")?;
    Ok((before.to_owned(), after.to_owned()))
}

/// Runs the command to its end.
pub(super) async fn run(session: &Session, args: TryArgs) -> Result<(), CliError> {
    let config = Config::read(&configuration(&args).to_string(), ReadConfig::default());
    let config = config.map_err(|error| CliError::Usage(error.to_string()))?;
    log_to_stderr("warn");
    let mut signals = Signals::listen()?;
    let damper = connect(session, args.service.as_deref())?;
    let proxy = bind(config, damper.clone()).await?;
    print_message(listening(proxy.addresses()));
    let address = proxy.addresses().connect.expect("the configuration has it");
    tokio::select! {
        ready = damper.ready(RULES_WITHIN) => if let Err(problem) = ready {
            print_message(format_args!("calls are sent once until there are rules: {problem}"));
        },
        stop = signals.next() => return Err(CliError::OfCommand(stop.exit_status())),
    }
    let [program, arguments @ ..] = args.command.as_slice() else {
        return Err(CliError::Usage("a command is required".to_owned()));
    };
    let mut command = Command::new(program);
    command.args(arguments).envs(variables(address)).kill_on_drop(true);
    // They would lead calls past the proxy.
    for name in ["NO_PROXY", "no_proxy", "no_grpc_proxy"] {
        command.env_remove(name);
    }
    let (mut child, group) = Group::spawn(&mut command).map_err(CliError::io(program.display()))?;
    let mut ended = None;
    proxy
        .run(async {
            // It still makes calls while it ends.
            ended = until_end(child.wait(), async || signals.next().await, |stop| group.signal(stop)).await;
            group.end(if ended.is_some() { END_WITHIN } else { Duration::ZERO }).await;
        })
        .await;
    match ended {
        Some(Ok(status)) if status.success() => Ok(()),
        Some(Ok(status)) => Err(CliError::OfCommand(exit_status(status))),
        Some(Err(error)) => Err(CliError::io(program.display())(error)),
        // It is killed.
        None => Err(CliError::OfCommand(128 + 9)),
    }
}

/// Passes each signal on until the command has ended; `None`: it did not end in time after SIGTERM. Other
/// signals set no limit: a program may handle them and go on.
async fn until_end<T>(
    end: impl Future<Output = T>,
    mut next: impl AsyncFnMut() -> Stop,
    pass_on: impl Fn(Stop),
) -> Option<T> {
    let mut end = pin!(end);
    loop {
        let stop = tokio::select! {
            ended = &mut end => return Some(ended),
            stop = next() => stop,
        };
        pass_on(stop);
        if stop == Stop::Terminate {
            break;
        }
    }
    let pass_all_on = async {
        loop {
            pass_on(next().await);
        }
    };
    tokio::select! {
        ended = tokio::time::timeout(END_WITHIN, end) => ended.ok(),
        () = pass_all_on => None,
    }
}

/// What a command has started is unknown here.
#[cfg(not(unix))]
struct Group;

#[cfg(not(unix))]
impl Group {
    fn spawn(command: &mut Command) -> std::io::Result<(tokio::process::Child, Self)> {
        Ok((command.spawn()?, Self))
    }

    fn signal(&self, _: Stop) {}

    async fn end(&self, _: Duration) {}
}

/// Returns the exit status of a command as a shell has it: 128 and the signal if one ended it.
fn exit_status(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    let signal = std::os::unix::process::ExitStatusExt::signal(&status).map(|signal| 128 + signal);
    #[cfg(not(unix))]
    let signal = None;
    status.code().or(signal).and_then(|code| code.try_into().ok()).unwrap_or(1)
}

fn configuration(args: &TryArgs) -> Value {
    let callee = |(host, to): &(String, String)| json!({ "host": host, "to": to, "external": false });
    let callees: Vec<_> = args.callees.iter().map(callee).collect();
    let mut config = json!({
        "connect": { "listen": "127.0.0.1:0", "callees": callees },
        "admin": "127.0.0.1:0",
        "drain": "1s",
    });
    if let Some((listen, to)) = &args.inbound {
        config["inbound"] = json!({ "listen": listen, "to": to });
    }
    config
}

/// Returns the variables by which libraries of gRPC use a proxy for HTTP CONNECT.
fn variables(connect: SocketAddr) -> [(&'static str, String); 4] {
    let url = format!("http://{connect}");
    let mut java = std::env::var("JAVA_TOOL_OPTIONS").unwrap_or_default();
    java.push_str(&format!(" -Dhttps.proxyHost={} -Dhttps.proxyPort={}", connect.ip(), connect.port()));
    [
        ("HTTPS_PROXY", url.clone()),
        ("https_proxy", url.clone()),
        ("grpc_proxy", url),
        ("JAVA_TOOL_OPTIONS", java),
    ]
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Passes on signals that arrive 7 s apart to a command that ends after an hour. Returns what was passed
    /// on, and when the wait has ended.
    async fn passed(signals: &[Stop]) -> (Vec<Stop>, Duration) {
        let began = tokio::time::Instant::now();
        let mut left = signals.iter();
        let next = async || {
            tokio::time::sleep(Duration::from_secs(7)).await;
            match left.next() {
                Some(stop) => *stop,
                None => std::future::pending().await,
            }
        };
        let passed = RefCell::default();
        let hour = tokio::time::sleep(Duration::from_secs(3600));
        until_end(hour, next, |stop| Vec::push(&mut passed.borrow_mut(), stop)).await;
        (passed.into_inner(), began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn sigterm_alone_limits_the_time_of_a_command() {
        use Stop::{HangUp, Interrupt, Quit, Terminate};
        let handled = [Interrupt, Interrupt, Quit, HangUp];
        assert_eq!(passed(&handled).await, (handled.to_vec(), Duration::from_secs(3600)));
        let ended = [Interrupt, Terminate, Terminate, Terminate];
        assert_eq!(passed(&ended).await, (ended[..3].to_vec(), Duration::from_secs(2 * 7 + 10)));
    }
}
