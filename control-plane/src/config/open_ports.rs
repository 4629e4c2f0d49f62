//! Which of the addresses that a server shall listen on, and which way to its store, would be open to others.
//!
//! Loopback is for everybody on the machine, and whoever sets up a server there may leave it so. Everywhere else the
//! API takes TLS, or what is said can be read and changed on the way, and tokens, or everybody may do everything. What
//! the metrics port has is read only: there it takes TLS, or word that it may be read. Where the port is guarded the way
//! to etcd must be, too: whoever sits there reads the hashes of tokens and the cluster key, and writes policy.

use crate::auth::Auth;
use crate::config::ServerConfig;

/// What is open, each with the ways to guard it; empty = nothing.
pub(crate) fn problems(settings: &ServerConfig) -> Vec<String> {
    let mut problems = Vec::new();
    let open = |address: std::net::SocketAddr| !address.ip().is_loopback();
    let listen = settings.listen;
    let lacks_tls = settings.tls.is_none();
    if open(listen) && lacks_tls {
        problems.push(format!(
            "{listen} can be reached from other machines, and nothing is encrypted: give a certificate and its key \
             with --tls-cert FILE --tls-key FILE (openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 \
             -nodes -keyout key.pem -out cert.pem -subj /CN=damper -addext subjectAltName=DNS:HOST makes one to try \
             with), or listen on 127.0.0.1"
        ));
    }
    if open(listen) && settings.auth == Auth::None {
        problems.push(format!(
            "{listen} can be reached from other machines, and everybody there may do everything: ask for tokens with \
             --auth tokens (and --bootstrap-token-file FILE for the first one), or listen on 127.0.0.1"
        ));
    }
    if let Some(metrics) = settings.metrics_listen
        && open(metrics)
        && lacks_tls
        && !settings.metrics_plaintext
    {
        problems.push(format!(
            "{metrics} can be reached from other machines, and metrics are not encrypted: give --tls-cert FILE \
             --tls-key FILE, or say --metrics-plaintext if everybody there may read them"
        ));
    }
    if (open(listen) || settings.auth == Auth::Tokens)
        && let Some(endpoint) = settings.store.plaintext_elsewhere()
    {
        problems.push(format!(
            "the way to the etcd at {endpoint} is not encrypted: whoever is on it reads the hashes of tokens and the key \
             that sessions are signed with, and writes policy: give etcd TLS and say --store \
             etcds://HOST:PORT/PREFIX?ca=FILE"
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
