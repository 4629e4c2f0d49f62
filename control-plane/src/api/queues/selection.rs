//! A selection of jobs, read from its filter.

use damper_core::{Code, Faults};
use damper_proto::{convert, v1};
use damper_queue::store::{Filter, JobId, StateKind};
use damper_queue::{MAX_KEY_BYTES, Selection};

use crate::api::jobs::wire::wall;
use crate::state::error::ApiError;
use crate::write::request::read_queue_name;

/// Jobs that a filter may name.
const MAX_IDS: usize = 1_000;
/// States that a filter may name: each once.
const MAX_STATES: usize = 7;

/// Reads a filter; all its faults at once.
pub(crate) fn read(filter: Option<v1::JobFilter>) -> Result<Selection, ApiError> {
    let v1::JobFilter { queue, states, route, code, key, job_ids, submitted_after, submitted_before } =
        filter.unwrap_or_default();
    let mut faults = Faults::none();
    if let Err(inner) = read_queue_name("queue", &queue) {
        faults.nest("", inner);
    }
    if job_ids.len() > MAX_IDS {
        faults.add("job_ids", format!("has {} ids, at most {MAX_IDS} are allowed", job_ids.len()));
    }
    if states.len() > MAX_STATES {
        faults.add("states", format!("has {} states, at most {MAX_STATES} are allowed", states.len()));
    }
    if key.len() > MAX_KEY_BYTES {
        faults.add("key", format!("must have at most {MAX_KEY_BYTES} bytes"));
    }
    let states =
        states.into_iter().take(MAX_STATES).filter_map(|state| read_state(state, &mut faults)).collect();
    let route = route.and_then(|route| match convert::pattern(&route) {
        Ok(pattern) => Some(pattern),
        Err(inner) => {
            faults.nest("route", inner);
            None
        }
    });
    let code = code.and_then(|code| {
        let known = Code::from_number(code.cast_unsigned());
        if known.is_none() {
            faults.add("code", format!("{code} is not known"));
        }
        known
    });
    let ids = job_ids.iter().take(MAX_IDS).enumerate().filter_map(|(n, text)| {
        let id = JobId::parse(text);
        if id.is_none() {
            faults.add(format!("job_ids[{n}]"), "must have 32 hexadecimal characters");
        }
        id
    });
    let ids = ids.collect();
    let submitted_after = submitted_after.map(|at| wall("submitted_after", at, &mut faults));
    let submitted_before = submitted_before.map(|at| wall("submitted_before", at, &mut faults));
    let filter = Filter { queue, states, lanes: None, code, key, submitted_after, submitted_before };
    faults.or(Selection { filter, route, ids }).map_err(|faults| ApiError::at("filter", faults))
}

fn read_state(state: i32, faults: &mut Faults) -> Option<StateKind> {
    match v1::JobState::try_from(state) {
        Ok(v1::JobState::Waiting) => Some(StateKind::Waiting),
        Ok(v1::JobState::Behind) => Some(StateKind::Behind),
        Ok(v1::JobState::Leased) => Some(StateKind::Leased),
        Ok(v1::JobState::Done) => Some(StateKind::Done),
        Ok(v1::JobState::Dead) => Some(StateKind::Dead),
        Ok(v1::JobState::Cancelled) => Some(StateKind::Cancelled),
        Ok(v1::JobState::Expired) => Some(StateKind::Expired),
        Ok(v1::JobState::Unspecified) | Err(_) => {
            faults.add("states", format!("{state} is no state of a job"));
            None
        }
    }
}
