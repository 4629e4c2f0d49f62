//! The least that a proxy can be: hyper's server and hyper's client of HTTP/2, and nothing between them.

use std::net::SocketAddr;

use anyhow::Result;
use http::Request;
use hyper::body::Incoming;
use hyper::client::conn::http2 as client;
use hyper::server::conn::http2 as server;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};

use crate::process::answer;

/// Forwards every request to an address until the process is killed; prints where it listens.
///
/// # Errors
/// There is no free port.
pub async fn pass_through(to: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    answer(&listener.local_addr()?.to_string())?;
    loop {
        let (caller, _) = listener.accept().await?;
        tokio::spawn(async move {
            if let Err(error) = pass(caller, to).await {
                eprintln!("a connection ended: {error:#}");
            }
        });
    }
}

/// Forwards the requests of one connection over one connection.
async fn pass(caller: TcpStream, to: SocketAddr) -> Result<()> {
    caller.set_nodelay(true)?;
    let callee = TcpStream::connect(to).await?;
    callee.set_nodelay(true)?;
    let (sender, connection) = client::handshake(TokioExecutor::new(), TokioIo::new(callee)).await?;
    tokio::spawn(connection);
    let forward = service_fn(move |request: Request<Incoming>| sender.clone().send_request(request));
    Ok(server::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(caller), forward).await?)
}
