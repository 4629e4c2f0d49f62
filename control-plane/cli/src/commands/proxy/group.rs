//! The process group of a tried command, so that what the command has started is signalled with it.
//!
//! The command has a group of its own. Where its input is a terminal it stays in the group of the shell's
//! job: another group could not read from the terminal, and Ctrl-C and Ctrl-Z would not reach it. That group
//! may have other commands of a pipeline, so there a signal to this process is for the command alone.

use std::io::IsTerminal as _;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions};
use rustix::process::{kill_process, kill_process_group, test_kill_process_group, waitpgid};
use tokio::process::{Child, Command};

use super::stop::Stop;

/// Interval in which a group is looked at until it is empty.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Where the processes of a command are.
pub(super) enum Group {
    /// In a group of their own.
    Own(Pid),
    /// With this process, in the job of a terminal; the process of the command.
    Job(Pid),
    /// Nowhere: the command has ended already.
    Gone,
}

impl Group {
    /// Starts a command.
    pub(super) fn spawn(command: &mut Command) -> std::io::Result<(Child, Self)> {
        let is_own = !std::io::stdin().is_terminal();
        if is_own {
            command.process_group(0);
        }
        let child = command.spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let group = match id {
            Some(id) if is_own => Self::Own(id),
            Some(id) => Self::Job(id),
            None => Self::Gone,
        };
        Ok((child, group))
    }

    /// Passes a signal on.
    pub(super) fn signal(&self, stop: Stop) {
        let signal = match stop {
            Stop::Terminate => Signal::TERM,
            Stop::Interrupt => Signal::INT,
            Stop::Quit => Signal::QUIT,
            Stop::HangUp => Signal::HUP,
        };
        let sent = match self {
            Self::Own(id) => kill_process_group(*id, signal),
            // The keys of the terminal have reached the whole job already.
            Self::Job(_) if matches!(stop, Stop::Interrupt | Stop::Quit) => Ok(()),
            Self::Job(id) => kill_process(*id, signal),
            Self::Gone => Ok(()),
        };
        if let Err(error) = sent {
            tracing::debug!(target: "damper", %error, "no process is left to signal");
        }
    }

    /// Ends what is left of a group of its own, once its command has ended: asks, waits, kills.
    pub(super) async fn end(&self, within: Duration) {
        let Self::Own(id) = self else { return };
        self.signal(Stop::Terminate);
        let emptied = async {
            loop {
                // As the first process of a container, this one inherits them.
                while let Ok(Some(_)) = waitpgid(*id, WaitOptions::NOHANG) {}
                if test_kill_process_group(*id).is_err() {
                    return;
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        if tokio::time::timeout(within, emptied).await.is_err() {
            _ = kill_process_group(*id, Signal::KILL);
        }
    }
}
