//! Calls to a callee over TLS.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use tonic::transport::{Server, ServerTlsConfig};
use tonic::{Code, Status};

use crate::certificates::{Authority, Files};
use crate::{Foreign, check, client, proxy, serve};

async fn start(service: &Foreign, tls: ServerTlsConfig) -> SocketAddr {
    serve(service.clone(), Server::builder().tls_config(tls).unwrap()).await
}

/// Calls through a proxy with these settings of TLS.
async fn call(to: SocketAddr, tls: &str) -> Result<(), Status> {
    let config = format!("outbound: [{{ callee: c, listen: '127.0.0.1:0', to: '{to}', tls: {{ {tls} }} }}]");
    let running = proxy("shop", &config).await;
    check(&mut client(running.addresses.outbound[0]), &[]).await.map(|_| ())
}

#[tokio::test]
async fn callee_must_have_a_certificate_for_its_name() {
    let (authority, files, service) = (Authority::new(), Files::new(), Foreign::default());
    let address = start(&service, authority.server()).await;
    let (ca, other) =
        (files.write("ca.pem", &authority.pem), files.write("other.pem", &Authority::new().pem));
    let trusted = format!("ca_file: '{}'", ca.display());
    call(address, &trusted).await.unwrap();
    call(address, &format!("{trusted}, server_name: 127.0.0.1")).await.unwrap();
    let named = format!("{trusted}, server_name: stock.test");
    for tls in [named, format!("ca_file: '{}'", other.display()), String::new()] {
        assert_eq!(call(address, &tls).await.unwrap_err().code(), Code::Unavailable, "{tls}");
    }
    assert_eq!(service.calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn proxy_shows_its_certificate_to_a_callee_that_asks() {
    let (authority, clients, files) = (Authority::new(), Authority::new(), Files::new());
    let service = Foreign::default();
    let address = start(&service, authority.server_that_asks(&clients)).await;
    let ca = files.write("ca.pem", &authority.pem);
    let (cert, key) = files.write_pair(&clients.issue(&["shop.test"]));
    let trusted = format!("ca_file: '{}'", ca.display());
    assert_eq!(call(address, &trusted).await.unwrap_err().code(), Code::Unavailable);
    let known = format!("{trusted}, cert_file: '{}', key_file: '{}'", cert.display(), key.display());
    call(address, &known).await.unwrap();
    assert_eq!(service.calls.load(Ordering::SeqCst), 1);
}
