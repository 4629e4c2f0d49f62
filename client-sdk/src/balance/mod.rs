//! A channel that knows its endpoints.
//!
//! ```no_run
//! # use damper_sdk::{Damper, Options};
//! # use tonic_health::pb::health_client::HealthClient as StockClient;
//! # fn start(damper: &Damper) -> Result<(), Box<dyn std::error::Error>> {
//! // Every address of the name, with a connection each.
//! let channel = damper_sdk::balanced("http://stock.shop.svc:7702")?;
//! let stock = StockClient::new(damper.client_layer("stock")?.layer(channel));
//! # Ok(())
//! # }
//! ```
//!
//! - An attempt goes to that one of two endpoints at random which has fewer requests in flight, and never to one that
//!   the same call has tried while another can be used.
//! - An endpoint that fails while the others do not is ejected for a while; see [`damper_core::endpoints`].
//! - A request that a closing connection has not taken is sent to another endpoint.
//! - While no endpoint is connected requests wait for the first one to answer; once all have failed they fail at once.
//!
//! `discovery` says which endpoints there are, `connection` keeps one connected by what `connect` makes, `service`
//! sends requests, `in_flight` counts them and reads what became of them, `tried` is how the layer above says which
//! endpoints a call has been to, `figures` is what the control plane is told of them.

mod body;
mod connect;
mod connection;
mod discovery;
mod endpoint;
mod figures;
mod in_flight;
mod service;
mod set;
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
pub(crate) use self::figures::{Channels, Figures, Standing};
pub(crate) use self::set::Shared;
pub use self::targets::{Target, Targets};

/// A channel to all endpoints of a callee. Clones are the same one; the connections end with the last of them.
///
/// Made by [`balanced`].
#[derive(Clone)]
pub struct Balanced {
    shared: Arc<Shared>,
    _discovery: Arc<Task>,
}

/// Ends with its last handle.
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A channel to all endpoints of a callee, for any generated client; usually with
/// [`ClientLayer`](crate::ClientLayer) around it. See [`balance`](self).
///
/// Connects in the background of the present tokio runtime, and never waits.
///
/// # Errors
/// Everything that is wrong with the targets, at once; also if there is no tokio runtime.
pub fn balanced(targets: impl Into<Targets>) -> Result<Balanced, Faults> {
    let mut faults = Faults::none();
    let checked = targets.into().check(&mut faults);
    let runtime = Handle::try_current()
        .map_err(|_| faults.add("runtime", "there is none: make a balanced channel within a tokio runtime"))
        .ok();
    let (Some(checked), Some(runtime), true) = (checked, runtime, faults.is_empty()) else {
        return Err(faults);
    };
    let shared = Arc::new(Shared::new(&checked.target));
    let discovery = runtime.spawn(discovery::run(checked, discovery::Ends(Arc::clone(&shared))));
    Ok(Balanced { shared, _discovery: Arc::new(Task(discovery.abort_handle())) })
}

impl Balanced {
    /// What is known of its endpoints.
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
