//! Finds listen addresses and a store connection that lack protection.
//!
//! Loopback addresses need none. On other addresses the API needs TLS against eavesdropping and changes on
//! the way, and tokens against access by any client. The metrics port is read only and needs TLS or explicit
//! permission. If the API is protected, the connection to etcd must be encrypted too, because it carries
//! token hashes, the cluster key and writes.

use crate::auth::Auth;
use crate::config::ServerConfig;

/// Returns the problems with their remedies; empty = none.
pub(crate) fn problems(settings: &ServerConfig) -> Vec<String> {
    let mut problems = Vec::new();
    let open = |address: std::net::SocketAddr| !address.ip().is_loopback();
    let listen = settings.listen;
    let lacks_tls = settings.tls.is_none();
    if open(listen) && lacks_tls {
        problems.push(format!(
            "{listen} can be reached from other machines without encryption: set a certificate and its key \
             with --tls-cert FILE --tls-key FILE (openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 \
             -nodes -keyout key.pem -out cert.pem -subj /CN=damper -addext subjectAltName=DNS:HOST makes one to try \
             with), or listen on 127.0.0.1"
        ));
    }
    if open(listen) && settings.auth == Auth::None {
        problems.push(format!(
            "{listen} can be reached from other machines, and all clients have full access: require tokens with \
             --auth tokens (and --bootstrap-token-file FILE for the first one), or listen on 127.0.0.1"
        ));
    }
    if let Some(metrics) = settings.metrics_listen
        && open(metrics)
        && lacks_tls
        && !settings.metrics_plaintext
    {
        problems.push(format!(
            "{metrics} can be reached from other machines, and metrics are not encrypted: set --tls-cert FILE \
             --tls-key FILE, or allow it with --metrics-plaintext"
        ));
    }
    if (open(listen) || settings.auth == Auth::Tokens)
        && let Some(endpoint) = settings.store.plaintext_elsewhere()
    {
        problems.push(format!(
            "the connection to etcd at {endpoint} is not encrypted: it exposes token hashes and the session key, and \
             allows writes: enable TLS in etcd and set --store etcds://HOST:PORT/PREFIX?ca=FILE"
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(store: &str, auth: Auth, listen: &str) -> Vec<String> {
        let store = store.parse().unwrap();
        problems(&ServerConfig { auth, listen: listen.parse().unwrap(), ..ServerConfig::new(store) })
    }

    #[test]
    fn a_plain_way_to_an_etcd_elsewhere_is_told_where_the_port_is_guarded_or_open() {
        const HERE: &str = "127.0.0.1:7600";
        let elsewhere = "etcd://127.0.0.1:2379,10.0.0.1:2379";
        for (auth, listen) in [(Auth::Tokens, HERE), (Auth::None, "0.0.0.0:7600")] {
            let told = told(elsewhere, auth, listen);
            let last = told.last().unwrap();
            assert!(last.contains("10.0.0.1:2379") && last.contains("etcds://"), "{last}");
        }
        assert!(told(elsewhere, Auth::None, HERE).is_empty());
        for fine in ["etcds://10.0.0.1:2379", "etcd://localhost:2379", "sled:x"] {
            assert!(told(fine, Auth::Tokens, HERE).is_empty(), "{fine}");
        }
    }
}
