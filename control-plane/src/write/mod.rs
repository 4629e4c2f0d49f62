//! One change: read, check (guards, ownership, amplification), propose, report the effects.

pub(crate) mod amplification;
pub(crate) mod chain_comparison;
pub(crate) mod chain_limit;
pub(crate) mod change_set;
pub(crate) mod claim;
pub(crate) mod conflict;
pub(crate) mod findings;
pub(crate) mod held_kills;
pub(crate) mod kill_expiry;
pub(crate) mod ownership;
pub(crate) mod reach;
pub(crate) mod removal;
pub(crate) mod request;
pub(crate) mod resource;
pub(crate) mod single;
pub(crate) mod token_expiry;
