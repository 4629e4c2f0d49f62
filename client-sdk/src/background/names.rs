//! Name lookups on threads off the runtime.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use crate::background::worker::TimedThread;

/// Looks up names; at most one lookup per name at a time.
#[derive(Debug, Default)]
pub(crate) struct Names(HashMap<String, TimedThread<io::Result<Vec<SocketAddr>>>>);

impl Names {
    /// Returns the addresses of a host, which may be an IP address.
    ///
    /// # Errors
    /// The lookup failed.
    pub(crate) async fn look_up(
        &mut self,
        host: &str,
        port: u16,
        limit: Duration,
    ) -> Result<Vec<SocketAddr>, String> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let (asked, named) = (host.to_owned(), format!("cannot look up {host}: "));
        let asking = self.0.entry(host.to_owned()).or_default();
        let found = asking.within(limit, move || Ok((asked, port).to_socket_addrs()?.collect())).await;
        match found {
            Ok(Ok(addresses)) => Ok(addresses),
            Ok(Err(error)) => Err(named + &error.to_string()),
            Err(problem) => Err(named + &problem),
        }
    }
}
