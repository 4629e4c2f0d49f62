//! Which of the addresses that a server shall listen on would be open to others without a guard.
//!
//! Loopback is for everybody on the machine, and whoever sets up a server there may leave it so. Everywhere else the
//! API takes TLS, or what is said can be read and changed on the way, and tokens, or everybody may do everything. What
//! the metrics port has is read only: there it takes TLS, or word that it may be read.

use crate::settings::{Auth, Settings};

/// What is open, each with the ways to guard it; empty = nothing.
pub(crate) fn problems(settings: &Settings) -> Vec<String> {
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
    problems
}
