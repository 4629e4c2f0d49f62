//! Without the feature `queue`: nothing follows a failed call, and nothing is stored for it.

use std::sync::Arc;
use std::time::Duration;

use damper_core::{Code, Finish, Verdict};
use http::Request;
use tonic::body::Body;

use crate::context::Context;
use crate::outcome::cause::Cause;
use crate::routes::{Callee, Runtime};

#[derive(Debug, Default)]
pub(in crate::client) struct Aftermath(());

impl Aftermath {
    #[inline]
    pub(in crate::client) fn of(
        _: &mut Request<Body>,
        _: &Arc<Runtime>,
        _: &Arc<Callee>,
        _: Option<&Context>,
    ) -> Self {
        Self(())
    }

    #[inline]
    pub(in crate::client) fn sends_before(&self) -> u32 {
        0
    }

    #[inline]
    pub(in crate::client) fn keeps_request(&self) -> bool {
        false
    }

    #[inline]
    pub(in crate::client) fn attempt_failed(&mut self, _: Code, _: &Verdict, _: Cause<'_>, _: Duration) {}

    #[inline]
    pub(in crate::client) fn ended(&mut self, _: &Finish, _: u32) {}
}
