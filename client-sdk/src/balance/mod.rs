//! A load-balancing channel that picks an endpoint per attempt.
//!
//! ```no_run
//! # use damper_sdk::{Damper, Options};
//! # use tonic_health::pb::health_client::HealthClient as StockClient;
//! # fn start(damper: &Damper) -> Result<(), Box<dyn std::error::Error>> {
//! // Connects to each address of the name.
//! let channel = damper_sdk::balanced("http://stock.shop.svc:7702")?;
//! let stock = StockClient::new(damper.client_layer("stock")?.layer(channel));
//! # Ok(())
//! # }
//! ```
//!
//! - Each attempt goes to the endpoint with fewer requests in flight, of two chosen at random. It avoids
//!   endpoints that the same call has tried, if another is available.
//! - An endpoint that fails while others do not is ejected for a time; see [`damper_core::endpoints`].
//! - If a closing connection has not accepted a request, the request goes to another endpoint.
//! - An endpoint that limits the streams of a connection gets as many connections as its requests need, at
//!   most 8. If all their streams are in use, the request goes to another endpoint, or fails unsent.
//! - While no endpoint is connected, requests wait for the first one. Once all have failed, requests fail at
//!   once.
//!
//! `discovery` finds the endpoints, `connection` keeps one connected through `connect`, and `extra` adds
//! connections when requests find no free `stream` within the `limit` of their endpoint. `service` sends
//! requests, `in_flight` counts them and records outcomes. `tried` passes the endpoints that a call has used
//! between this channel and the client layer. `figures` is the report to the control plane.

mod body;
mod connect;
mod connection;
mod discovery;
mod endpoint;
mod extra;
mod figures;
mod in_flight;
mod limit;
mod service;
mod set;
mod stream;
mod targets;
#[cfg(feature = "tls")]
mod tls;
pub(crate) mod tried;

use std::fmt;
use std::sync::Arc;

use damper_core::Faults;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

pub use self::body::BalancedBody;
#[cfg(feature = "metrics")]
pub(crate) use self::figures::States;
pub(crate) use self::figures::{Channels, Figures, Standing};
pub(crate) use self::set::Shared;
pub use self::targets::{Target, Targets};

/// A channel to all endpoints of a callee, made by [`balanced`]. Clones share the connections, which close
/// with the last clone.
#[derive(Clone)]
pub struct Balanced {
    shared: Arc<Shared>,
    _discovery: Arc<Task>,
}

/// Aborts the task when the last handle is dropped.
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Returns a channel to all endpoints of a callee, for any generated client. Usually wrapped in a
/// [`ClientLayer`](crate::ClientLayer). See [`balance`](self).
///
/// Returns at once and connects in the background of the current tokio runtime.
///
/// # Errors
/// All problems of the targets together, or there is no tokio runtime.
pub fn balanced(targets: impl Into<Targets>) -> Result<Balanced, Faults> {
    let mut faults = Faults::none();
    let checked = targets.into().check(&mut faults);
    let runtime = Handle::try_current()
        .map_err(|_| faults.add("runtime", "required; call `balanced` within a tokio runtime"))
        .ok();
    let (Some(checked), Some(runtime), true) = (checked, runtime, faults.is_empty()) else {
        return Err(faults);
    };
    let shared = Arc::new(Shared::new(&checked.target, checked.keeps_authority));
    let discovery = runtime.spawn(discovery::run(checked, discovery::Ends(Arc::clone(&shared))));
    Ok(Balanced { shared, _discovery: Arc::new(Task(discovery.abort_handle())) })
}

impl Balanced {
    /// Returns the channel's endpoints.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl fmt::Debug for Balanced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Balanced").field("target", &self.shared.target()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
