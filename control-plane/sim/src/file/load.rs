//! Loads of a scenario: open, closed or queued.

use std::time::Duration;

use damper_core::fault::Faults;
use serde::Deserialize;

use super::required;
use crate::scenario::{Arrivals, DEFAULT_CONCURRENCY, Load, Queued, RateFrom, Target};
use crate::spread::Spread;
use crate::values::{RateMilli, optional, plain};

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LoadFile {
    caller: Option<String>,
    processes: Option<u32>,
    #[serde(deserialize_with = "optional")]
    call: Option<Target>,
    #[serde(deserialize_with = "optional")]
    timeout: Option<Duration>,
    bare: bool,
    #[serde(deserialize_with = "optional")]
    restart: Option<Duration>,
    open: Option<OpenFile>,
    closed: Option<ClosedFile>,
    queued: Option<QueuedFile>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct OpenFile {
    even: bool,
    #[serde(deserialize_with = "optional")]
    rate: Option<RateMilli>,
    rates: Vec<RateFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RateFile {
    #[serde(default, deserialize_with = "plain")]
    from: Duration,
    #[serde(deserialize_with = "plain")]
    rate: RateMilli,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClosedFile {
    users: u32,
    think: Option<Spread>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct QueuedFile {
    queue: Option<String>,
    backlog: u32,
    #[serde(deserialize_with = "plain")]
    from: Duration,
    concurrency: Option<u32>,
    even: bool,
    #[serde(deserialize_with = "optional")]
    rate: Option<RateMilli>,
    rates: Vec<RateFile>,
}

impl LoadFile {
    pub(super) fn load(self, path: &str, faults: &mut Faults) -> Load {
        let kinds = [
            self.open.map(|open| ("open", open.arrivals(&format!("{path}.open"), faults))),
            self.closed.map(|closed| ("closed", closed.arrivals())),
            self.queued.map(|queued| ("queued", queued.arrivals(&format!("{path}.queued"), faults))),
        ];
        let mut kinds = kinds.into_iter().flatten();
        let first = kinds.next();
        match (&first, kinds.next()) {
            (Some((first, _)), Some((second, _))) => {
                faults.add(format!("{path}.{second}"), format!("conflicts with `{first}`"));
            }
            (None, _) => faults.add(path, "requires one of open, closed, queued"),
            (Some(_), None) => {}
        }
        let arrivals = first.map(|(_, arrivals)| arrivals);
        Load {
            caller: required(self.caller, format!("{path}.caller"), String::new(), faults),
            processes: self.processes.unwrap_or(1),
            call: required(self.call, format!("{path}.call"), Target::new("", ""), faults),
            timeout: self.timeout,
            bare: self.bare,
            restart: self.restart,
            arrivals: arrivals.unwrap_or(Arrivals::Open { even: false, rates: Vec::new() }),
        }
    }
}

impl OpenFile {
    fn arrivals(self, path: &str, faults: &mut Faults) -> Arrivals {
        if self.rate.is_none() && self.rates.is_empty() {
            faults.add(path, "requires `rate` or `rates`");
        }
        Arrivals::Open { even: self.even, rates: rates(self.rate, self.rates, path, faults) }
    }
}

impl ClosedFile {
    fn arrivals(self) -> Arrivals {
        let Self { users, think } = self;
        Arrivals::Closed { users, think: think.unwrap_or(Spread::Fixed(Duration::ZERO)) }
    }
}

impl QueuedFile {
    fn arrivals(self, path: &str, faults: &mut Faults) -> Arrivals {
        Arrivals::Queued(Queued {
            queue: required(self.queue, format!("{path}.queue"), String::new(), faults),
            backlog: self.backlog,
            from: self.from,
            concurrency: self.concurrency.unwrap_or(DEFAULT_CONCURRENCY),
            even: self.even,
            rates: rates(self.rate, self.rates, path, faults),
        })
    }
}

/// Returns the one rate, or the list.
fn rates(one: Option<RateMilli>, list: Vec<RateFile>, path: &str, faults: &mut Faults) -> Vec<RateFrom> {
    let rate = |file: RateFile| RateFrom { from: file.from, milli_per_second: file.rate.0 };
    let mut rates: Vec<_> = list.into_iter().map(rate).collect();
    if let Some(RateMilli(milli_per_second)) = one {
        if !rates.is_empty() {
            faults.add(format!("{path}.rate"), "conflicts with `rates`");
        }
        rates.push(RateFrom { from: Duration::ZERO, milli_per_second });
    }
    rates
}
