//! What is called, and through what.

use bytes::Bytes;
use clap::ValueEnum;
use damper_sdk::{ClientService, Damper};
use http_body_util::Full;
use serde::{Deserialize, Serialize};
use tonic::body::Body;
use tower::retry::Retry;

use super::drive::call;
use super::stock::{Message, Requests, Stock};
use super::tower_retry::{Attempts, Boxed, ForTonic, Plain, Whole};

/// Through what a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// Nothing.
    Bare,
    /// Damper's layer, on a route with a rule.
    Damper,
    /// Damper's layer, on a route without a rule.
    DamperNoRule,
    /// `tower::retry`, as a tonic client needs it.
    Tower,
    /// Nothing; the body can be cloned.
    BareCloneable,
    /// `tower::retry`; the body can be cloned.
    TowerCloneable,
}

impl Subject {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Bare,
        Self::Damper,
        Self::DamperNoRule,
        Self::Tower,
        Self::BareCloneable,
        Self::TowerCloneable,
    ];

    /// As it is written on the command line.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The callee that has a rule.
pub(crate) const CALLEE: &str = "stock";

/// All subjects around the same service. Clones share what clones of a client share.
#[derive(Clone, Debug)]
pub struct Bench {
    requests: Requests,
    bare: Stock,
    damper: ClientService<Stock>,
    no_rule: ClientService<Stock>,
    tower: ForTonic,
    cloneable: Plain,
}

impl Bench {
    /// `damper` has a rule for the service `stock`.
    ///
    /// # Errors
    /// None, with these names.
    pub fn new(damper: &Damper) -> anyhow::Result<Self> {
        let attempts = Attempts::new();
        Ok(Self {
            requests: Requests::new(),
            bare: Stock,
            damper: damper.client_layer(CALLEE)?.layer(Stock),
            no_rule: damper.client_layer("stock-without-a-rule")?.layer(Stock),
            tower: Whole(Retry::new(attempts.clone(), Boxed(Stock))),
            cloneable: Retry::new(attempts, Stock),
        })
    }

    /// Makes so many calls, one after the other.
    pub fn calls(&mut self, subject: Subject, count: usize) {
        let Self { requests, bare, damper, no_rule, tower, cloneable } = self;
        let tonic = || requests.with(Body::new(Message::new()));
        let full = || requests.with(Full::<Bytes>::new(Message::encoded()));
        match subject {
            Subject::Bare => (0..count).for_each(|_| call(bare, tonic())),
            Subject::Damper => (0..count).for_each(|_| call(damper, tonic())),
            Subject::DamperNoRule => (0..count).for_each(|_| call(no_rule, tonic())),
            Subject::Tower => (0..count).for_each(|_| call(tower, tonic())),
            Subject::BareCloneable => (0..count).for_each(|_| call(bare, full())),
            Subject::TowerCloneable => (0..count).for_each(|_| call(cloneable, full())),
        }
    }
}
