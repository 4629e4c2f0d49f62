//! What reads bytes of others, for fuzz targets, which have no network.
//!
//! Only with the feature `fuzzing`; not part of the public API.

use std::future::ready;
use std::io;
use std::sync::Arc;

use damper_sdk::Damper;
use http::HeaderMap;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::runtime::{self, Runtime};

use super::{Calls, Connect, Granted, first_bytes};
use crate::config::{self, Callee};
use crate::context::{Contexts, carriers};

/// Removes our members of `tracestate` and `baggage`, and returns their keys in this order.
pub fn take_keys(headers: &mut HeaderMap) -> [Option<u64>; 2] {
    let keys = carriers::take(headers);
    [keys.in_trace_state, keys.in_baggage]
}

/// Adds a key where there is room. Returns false if there is none at all.
pub fn put_key(headers: &mut HeaderMap, key: u64) -> bool {
    carriers::put(headers, key)
}

/// A listener for HTTP CONNECT.
pub struct Listener {
    connect: Connect,
    /// Has the tasks of channels and never runs them: nothing is looked up and nothing is dialled.
    idle: Runtime,
}

/// A CONNECT that was granted.
#[derive(Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Address of the host.
    pub to: String,
    /// The callee whose calls are governed.
    pub governs: Governs,
    /// HTTP/2 begins.
    pub is_http2: bool,
    /// Bytes for the host.
    pub passed: Vec<u8>,
}

/// Calls of a tunnel that are governed.
#[derive(Debug, PartialEq, Eq)]
pub enum Governs {
    /// Those to a callee of the configuration.
    Listed,
    /// Those to a name within the cluster.
    Found(Callee),
    /// None.
    Nothing,
}

impl Listener {
    /// Returns a listener without a socket. It must be dropped outside of a runtime.
    ///
    /// # Errors
    /// There is no runtime, or the callees have problems.
    pub fn new(config: config::Connect, damper: &Damper) -> io::Result<Self> {
        let idle = runtime::Builder::new_current_thread().build()?;
        let connect = {
            let _idle = idle.enter();
            Connect::new(config, damper, &Contexts::new(1), &Arc::default()).map_err(io::Error::other)?
        };
        Ok(Self { connect, idle })
    }

    /// Serves a connection to its end, and returns its tunnel, with the callee's channel opened and dropped.
    ///
    /// # Errors
    /// The bytes after the CONNECT end too early.
    pub async fn serve<I>(&self, io: I) -> io::Result<Option<Tunnel>>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Some((upgrade, granted)) = self.connect.granted(io, |granted| ready(Ok(granted))).await else {
            return Ok(None);
        };
        let mut io = TokioIo::new(upgrade.await.map_err(io::Error::other)?);
        let (calls, to) = match granted {
            Granted::Callee(calls, to) => (Some(calls), to),
            Granted::Other(to) => (None, to),
        };
        let (mut passed, is_http2) =
            if calls.is_some() { first_bytes(&mut io).await? } else { (Vec::new(), false) };
        io.read_to_end(&mut passed).await?;
        if let Some(calls) = &calls {
            let _idle = self.idle.enter();
            drop(self.connect.outbound(calls));
        }
        let governs = match calls {
            None => Governs::Nothing,
            Some(Calls::Listed(_)) => Governs::Listed,
            Some(Calls::Found(_, callee)) => Governs::Found(callee),
        };
        Ok(Some(Tunnel { to, governs, is_http2, passed }))
    }
}
