//! Settings of hedges.

use damper_core::policy::{HEDGE_DELAY, HEDGE_PERCENTILE};
use damper_core::{Faults, Hedge, HedgeDelay};

use super::{amount, within};
use crate::v1::{self, hedge_delay::Kind};

/// Stand-in for a rejected delay, so that the rest can be checked.
const REFUSED: HedgeDelay = HedgeDelay::Fixed(HEDGE_DELAY.min);

/// Reads the hedge settings.
pub(super) fn hedge(wire: &v1::Hedge, faults: &mut Faults) -> Hedge {
    let v1::Hedge { delay: said, max_hedges } = wire;
    Hedge {
        delay: within("delay", faults, |faults| delay(said.as_ref(), faults)),
        max_hedges: max_hedges.unwrap_or(Hedge::DEFAULT_MAX_HEDGES),
    }
}

fn delay(wire: Option<&v1::HedgeDelay>, faults: &mut Faults) -> HedgeDelay {
    match wire.and_then(|v1::HedgeDelay { kind }| kind.as_ref()) {
        None => {
            faults.add("", "required (fixed or percentile)");
            REFUSED
        }
        Some(Kind::Fixed(wire)) => {
            amount::duration("fixed", Some(wire), HEDGE_DELAY, faults).map_or(REFUSED, HedgeDelay::Fixed)
        }
        Some(Kind::Percentile(wire)) => within("percentile", faults, |faults| percentile(wire, faults)),
    }
}

fn percentile(wire: &v1::PercentileDelay, faults: &mut Faults) -> HedgeDelay {
    let v1::PercentileDelay { at, min, max } = wire;
    if at.is_none() {
        faults.add("at", format!("required ({HEDGE_PERCENTILE})"));
    }
    let at = amount::percent("at", *at, HEDGE_PERCENTILE, faults).unwrap_or(HEDGE_PERCENTILE.min);
    let min = amount::duration("min", min.as_ref(), HEDGE_DELAY, faults).unwrap_or(HEDGE_DELAY.min);
    let min = amount::in_bounds("min", min, HEDGE_DELAY, faults);
    let max = amount::duration("max", max.as_ref(), HEDGE_DELAY, faults).unwrap_or(HEDGE_DELAY.max);
    HedgeDelay::Percentile { at, min, max }
}

impl From<&Hedge> for v1::Hedge {
    fn from(hedge: &Hedge) -> Self {
        let Hedge { delay, max_hedges } = *hedge;
        Self { delay: Some(delay.into()), max_hedges: Some(max_hedges) }
    }
}

impl From<HedgeDelay> for v1::HedgeDelay {
    fn from(delay: HedgeDelay) -> Self {
        let kind = match delay {
            HedgeDelay::Fixed(delay) => Kind::Fixed(amount::to_wire(delay)),
            HedgeDelay::Percentile { at, min, max } => Kind::Percentile(v1::PercentileDelay {
                at: Some(amount::percent_to_wire(at)),
                min: Some(amount::to_wire(min)),
                max: Some(amount::to_wire(max)),
            }),
        };
        Self { kind: Some(kind) }
    }
}
