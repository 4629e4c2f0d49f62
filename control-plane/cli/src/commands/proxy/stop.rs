//! The signals that `damper proxy try` passes on to its command. Each would end this process and leave the
//! command without its proxy.
//!
//! A SIGHUP that is ignored from the start, as by `nohup`, stays ignored for this process and the command.

use crate::error::CliError;

/// A signal that asks a process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(unix), allow(dead_code, reason = "there are no such signals"))]
pub(super) enum Stop {
    /// SIGTERM.
    Terminate,
    /// SIGINT, as of Ctrl-C.
    Interrupt,
    /// SIGQUIT, as of Ctrl-\\.
    Quit,
    /// SIGHUP: the terminal is gone.
    HangUp,
}

impl Stop {
    /// Returns the exit status of a process that the signal ended, as a shell has it.
    pub(super) fn exit_status(self) -> u8 {
        128 + match self {
            Self::HangUp => 1,
            Self::Interrupt => 2,
            Self::Quit => 3,
            Self::Terminate => 15,
        }
    }
}

/// The signals that arrive.
pub(super) struct Signals {
    #[cfg(unix)]
    terminate: Signal,
    #[cfg(unix)]
    interrupt: Signal,
    #[cfg(unix)]
    quit: Signal,
    /// `None` if it is ignored.
    #[cfg(unix)]
    hang_up: Option<Signal>,
}

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind};

impl Signals {
    #[cfg(unix)]
    pub(super) fn listen() -> Result<Self, CliError> {
        let listen = |kind| tokio::signal::unix::signal(kind).map_err(CliError::io("signals"));
        let hang_up = (!ignores_hang_up()).then(|| listen(SignalKind::hangup())).transpose()?;
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            quit: listen(SignalKind::quit())?,
            hang_up,
        })
    }

    #[cfg(unix)]
    pub(super) async fn next(&mut self) -> Stop {
        let hung_up = async {
            match &mut self.hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => Stop::Terminate,
            _ = self.interrupt.recv() => Stop::Interrupt,
            _ = self.quit.recv() => Stop::Quit,
            _ = hung_up => Stop::HangUp,
        }
    }

    #[cfg(not(unix))]
    pub(super) fn listen() -> Result<Self, CliError> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    pub(super) async fn next(&mut self) -> Stop {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        Stop::Interrupt
    }
}

/// Returns true if this process was started with SIGHUP ignored. Only Linux shows that without unsafe code.
#[cfg(unix)]
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}
