//! Options that select jobs.

use clap::{Args, ValueEnum};
use damper_core::Code;
use damper_proto::v1;

use crate::error::CliError;
use crate::input::key::Key;

/// Selection of jobs.
#[derive(Args, Debug)]
pub(crate) struct FilterArgs {
    /// Name of the queue
    queue: String,
    /// Select only jobs in this state; can be repeated
    #[arg(long = "state", value_name = "STATE")]
    states: Vec<State>,
    /// Select only jobs whose most recent failure had this gRPC code, such as UNAVAILABLE
    #[arg(long, value_name = "CODE", value_parser = read_code)]
    code: Option<Code>,
    /// Select only jobs with this key
    #[arg(long, default_value = "", hide_default_value = true)]
    key: String,
    /// Select only jobs from this calling service
    #[arg(long, default_value = "*", hide_default_value = true)]
    caller: String,
    /// Select only jobs from callers in this cluster
    #[arg(long, default_value = "*", hide_default_value = true)]
    cluster: String,
    /// Select only jobs for this called service
    #[arg(long, default_value = "*", hide_default_value = true)]
    callee: String,
    /// Select only jobs for this method
    #[arg(long, default_value = "*", hide_default_value = true)]
    method: String,
}

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum State {
    /// Not due yet, or due and not delivered yet
    Waiting,
    /// Waits for an earlier job with the same order key
    Behind,
    /// Delivered to a worker, not ended yet
    Leased,
    /// Finished
    Done,
    /// Given up; kept for a replay
    Dead,
    /// Cancelled
    Cancelled,
    /// Not done before it expired
    Expired,
}

impl State {
    fn wire(self) -> v1::JobState {
        match self {
            Self::Waiting => v1::JobState::Waiting,
            Self::Behind => v1::JobState::Behind,
            Self::Leased => v1::JobState::Leased,
            Self::Done => v1::JobState::Done,
            Self::Dead => v1::JobState::Dead,
            Self::Cancelled => v1::JobState::Cancelled,
            Self::Expired => v1::JobState::Expired,
        }
    }
}

impl FilterArgs {
    /// Returns the wire form, limited to some jobs unless there are none.
    pub(crate) fn wire(&self, job_ids: &[String]) -> Result<v1::JobFilter, CliError> {
        let Self { queue, states, code, key, caller, cluster, callee, method } = self;
        let [caller, cluster, callee, method] = [caller, cluster, callee, method].map(String::clone);
        let is_any = [&caller, &cluster, &callee, &method].iter().all(|part| **part == "*");
        let route = Key { caller, cluster, callee, method }.pattern()?;
        Ok(v1::JobFilter {
            queue: queue.clone(),
            states: states.iter().map(|state| state.wire().into()).collect(),
            route: Some(route).filter(|_| !is_any),
            code: code.map(|code| code.number().cast_signed()),
            key: key.clone(),
            job_ids: job_ids.to_vec(),
            submitted_after: None,
            submitted_before: None,
        })
    }
}

fn read_code(text: &str) -> Result<Code, String> {
    let known = Code::ALL.into_iter().find(|code| code.name().eq_ignore_ascii_case(text));
    known.ok_or_else(|| "must be a gRPC status code such as UNAVAILABLE".to_owned())
}

/// Returns the name of a state.
pub(crate) fn state_name(state: i32) -> String {
    match v1::JobState::try_from(state) {
        Ok(v1::JobState::Unspecified) | Err(_) => "unknown".to_owned(),
        Ok(known) => known.as_str_name().trim_start_matches("JOB_STATE_").to_lowercase(),
    }
}

/// Returns the name of a status code.
pub(crate) fn code_name(code: i32) -> &'static str {
    Code::from_number(code.cast_unsigned()).map_or("unknown", Code::name)
}
