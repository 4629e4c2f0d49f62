//! How a layer calls the next one: the same tonic call for every strategy, repeated by whom the strategy says.
//!
//! Damper sits below the call, as a layer around the channel. `tower::retry` sits above it, around the stub, as
//! services do that have no body to clone there; its budget is fed and asked as its documentation shows.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use damper_sdk::Damper;
use damper_sdk::balance::Targets;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tower::retry::backoff::{Backoff as _, ExponentialBackoff, ExponentialBackoffMaker, MakeBackoff as _};
use tower::retry::budget::{Budget as _, TpsBudget};
use tower::retry::{Policy, Retry};
use tower::util::{BoxCloneSyncService, rng::HasherRng};

use super::layer::Spec;
use super::strategy::{ATTEMPTS, BUDGET, Strategy, WAIT, service};
use crate::hop;

/// A call to the next layer with the request's text.
pub(super) type Next = BoxCloneSyncService<String, (), Status>;

/// The way to the next layer; none for the bottom.
pub(super) fn next(spec: &Spec, damper: Option<&Damper>) -> anyhow::Result<Option<Next>> {
    if spec.next.is_empty() {
        return Ok(None);
    }
    if let Some(damper) = damper {
        let callee = service(spec.layer + 1);
        let layer = damper.client_layer(&callee)?;
        return Ok(Some(match spec.strategy {
            Strategy::DamperBalanced => {
                let targets = Targets::new(format!("http://{callee}")).at(spec.next.iter().copied());
                stub(layer.layer(damper_sdk::balanced(targets)?), None)
            }
            _ => stub(layer.layer(channel(&spec.next)?), None),
        }));
    }
    let channel = channel(&spec.next)?;
    let timeout = spec.times.attempt_of(spec.layer, spec.layers);
    let once = stub(channel, Some(timeout));
    Ok(Some(match Again::of(spec.strategy, spec.times.window()) {
        Some(again) => BoxCloneSyncService::new(Retry::new(again, once)),
        None => once,
    }))
}

/// One channel to all instances of a layer; the next request goes to any of them.
fn channel(instances: &[SocketAddr]) -> anyhow::Result<Channel> {
    let endpoint = |address: &SocketAddr| Endpoint::from_shared(format!("http://{address}"));
    let endpoints: Vec<_> = instances.iter().map(endpoint).collect::<Result<_, _>>()?;
    match endpoints.as_slice() {
        [one] => Ok(one.connect_lazy()),
        _ => Ok(Channel::balance_list(endpoints.into_iter())),
    }
}

/// A call without repeats: given up after the time, if there is one, which cancels it on the wire.
fn stub<S>(channel: S, timeout: Option<Duration>) -> Next
where
    S: GrpcService<Body, ResponseBody: http_body::Body<Data = bytes::Bytes> + Send + 'static>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send,
    <S::ResponseBody as http_body::Body>::Error: Into<tonic::codegen::StdError> + Send,
    S::Error: Send,
{
    BoxCloneSyncService::new(tower::service_fn(move |text: String| {
        let channel = channel.clone();
        async move {
            let answer = hop::call(channel, Request::new(text));
            let answer = match timeout {
                Some(timeout) => match tokio::time::timeout(timeout, answer).await {
                    Ok(answer) => answer,
                    Err(_) => Err(Status::deadline_exceeded("no answer in time")),
                },
                None => answer.await,
            };
            answer.map(|_| ())
        }
    }))
}

/// `tower::retry`'s policy for one call.
#[derive(Clone)]
struct Again {
    left: u32,
    waits: Waits,
    budget: Option<Arc<TpsBudget>>,
}

#[derive(Clone)]
enum Waits {
    None,
    /// Not begun: what tower clones for each call would have the same jitter in all of them.
    Exponential,
    Begun(ExponentialBackoff),
}

impl Again {
    /// None if the strategy repeats nothing.
    fn of(strategy: Strategy, window: Duration) -> Option<Self> {
        let left = ATTEMPTS - 1;
        // Its time to live is at least a second.
        let budget = || TpsBudget::new(window.max(Duration::from_secs(1)), BUDGET.1, BUDGET.0);
        match strategy {
            Strategy::Naive => Some(Self { left, waits: Waits::None, budget: None }),
            Strategy::Backoff => Some(Self { left, waits: Waits::Exponential, budget: None }),
            Strategy::TowerBudget => {
                Some(Self { left, waits: Waits::Exponential, budget: Some(Arc::new(budget())) })
            }
            _ => None,
        }
    }

    /// Whether a call that ended so may be repeated.
    fn may(&self, status: &Status) -> bool {
        let retryable = matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded);
        retryable && self.left > 0 && self.budget.as_ref().is_none_or(|budget| budget.withdraw())
    }
}

impl Waits {
    fn next(&mut self) -> Wait {
        if let Self::Exponential = self {
            let maker = ExponentialBackoffMaker::new(WAIT.0, WAIT.1, 1.0, HasherRng::new());
            *self = Self::Begun(maker.expect("the waits are in order").make_backoff());
        }
        match self {
            Self::Begun(waits) => Box::pin(waits.next_backoff()),
            _ => Box::pin(std::future::ready(())),
        }
    }
}

type Wait = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Policy<String, (), Status> for Again {
    type Future = Wait;

    fn retry(&mut self, _: &mut String, result: &mut Result<(), Status>) -> Option<Wait> {
        match result {
            Ok(()) => {
                if let Some(budget) = &self.budget {
                    budget.deposit();
                }
                None
            }
            Err(status) => self.may(status).then(|| {
                self.left -= 1;
                self.waits.next()
            }),
        }
    }

    fn clone_request(&mut self, text: &String) -> Option<String> {
        Some(text.clone())
    }
}
