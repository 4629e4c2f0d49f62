//! A service that a control plane has a rule for.

use std::time::Duration;

use anyhow::Result;
use damper_sdk::{Damper, Options};

use super::subject::CALLEE;
use crate::fleet::{Server, Settings, apply, put, rule};

const PATIENCE: Duration = Duration::from_secs(30);

/// The caller's name.
pub(crate) const CALLER: &str = "orders";

/// A control plane without TLS that has a rule for every call to the service `stock`.
///
/// # Errors
/// It can not be started.
pub async fn control_plane() -> Result<Server> {
    let server = Server::start(Settings { plaintext: true, ..Settings::default() }).await?;
    apply(server.door(), vec![put(&rule("*", CALLEE)?)]).await?;
    Ok(server)
}

/// A service under the rules of the control plane there.
///
/// # Errors
/// They do not arrive.
pub async fn service(url: &str) -> Result<Damper> {
    let damper = Damper::connect(Options::new([url]).service(CALLER))?;
    damper.ready(PATIENCE).await?;
    Ok(damper)
}
