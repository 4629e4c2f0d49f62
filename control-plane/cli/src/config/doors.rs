//! The settings of the ports: the certificate they show, whose they take, and how long they stay open at the end.
//!
//! The key is never given by flag, only where it is; who has no files gives the texts in the environment
//! (`DAMPER_TLS_CERT_PEM` and the like).

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use damper_control_plane::{ClientCertificates, Pem, Settings, Tls};

use super::{File, Layers};

/// What can be said of the ports on the command line.
#[derive(Args, Debug, Default)]
pub(super) struct DoorArgs {
    /// The certificate that the ports show, with those between it and its authority, as PEM; read again when it changes
    /// [env: DAMPER_TLS_CERT, or the text itself in DAMPER_TLS_CERT_PEM] [default: no TLS]
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Its private key, as PEM [env: DAMPER_TLS_KEY, or DAMPER_TLS_KEY_PEM]
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// The authorities whose client certificates are taken, as PEM
    /// [env: DAMPER_TLS_CLIENT_CA, or DAMPER_TLS_CLIENT_CA_PEM] [default: none are asked for]
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    /// Whether clients must show a certificate [env: DAMPER_TLS_CLIENT_CERTS] [default: optional]
    #[arg(long, value_name = "WHETHER")]
    tls_client_certs: Option<Shown>,
    /// Serve metrics on --metrics-listen without TLS, to whoever can reach it [env: DAMPER_METRICS_PLAINTEXT]
    #[arg(long)]
    metrics_plaintext: bool,
    /// How long connections may take to end on shutdown, at most 1h [env: DAMPER_DRAIN] [default: 3s]
    #[arg(long, value_name = "TIME")]
    drain: Option<Drain>,
}

/// Whether clients must show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shown {
    /// One that is shown must be valid
    Optional,
    /// A connection without one is refused
    Required,
}

impl FromStr for Shown {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as ValueEnum>::from_str(text, false).map_err(|_| "is neither optional nor required".to_owned())
    }
}

/// How long connections may take to end.
#[derive(Clone, Copy, Debug)]
struct Drain(Duration);

impl FromStr for Drain {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let most = Duration::from_secs(3600);
        match humantime::parse_duration(text) {
            Ok(time) if time <= most => Ok(Self(time)),
            Ok(_) => Err("is longer than 1h".to_owned()),
            Err(_) => Err("is not a time such as 3s or 1m".to_owned()),
        }
    }
}

/// What the layers say of the ports.
#[derive(Debug)]
pub(super) struct Doors {
    tls: Option<Tls>,
    metrics_plaintext: Option<bool>,
    drain: Option<Drain>,
}

impl Doors {
    pub(super) fn pick(layers: &mut Layers<'_>, args: DoorArgs, file: &mut File) -> Self {
        let certificate = layers.pem("tls_cert", args.tls_cert, file.tls_cert.take());
        let key = layers.pem("tls_key", args.tls_key, file.tls_key.take());
        let client_ca = layers.pem("tls_client_ca", args.tls_client_ca, file.tls_client_ca.take());
        let shown = layers.pick("tls_client_certs", args.tls_client_certs, file.tls_client_certs.take());
        let tls = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(Tls::new(certificate, key)),
            (None, None) => {
                let needless = client_ca.is_some() || shown == Some(Shown::Required);
                if needless {
                    layers.fault("tls_client_ca: client certificates need TLS: give tls_cert and tls_key too");
                }
                None
            }
            (Some(_), None) => {
                layers.fault("tls_key: must be given with tls_cert");
                None
            }
            (None, Some(_)) => {
                layers.fault("tls_cert: must be given with tls_key");
                None
            }
        };
        let client_certificates = match shown {
            Some(Shown::Required) => ClientCertificates::Required,
            Some(Shown::Optional) | None => ClientCertificates::Optional,
        };
        if client_certificates == ClientCertificates::Required && client_ca.is_none() && tls.is_some() {
            layers.fault("tls_client_certs: none can be required without tls_client_ca");
        }
        let tls = tls.map(|tls| Tls { client_ca, client_certificates, ..tls });
        let said = args.metrics_plaintext.then_some(true);
        let metrics_plaintext =
            layers.pick("metrics_plaintext", said, file.metrics_plaintext.map(|said| said.to_string()));
        let drain = layers.pick("drain", args.drain, file.drain.take());
        Self { tls, metrics_plaintext, drain }
    }

    pub(super) fn put(self, settings: &mut Settings) {
        settings.tls = self.tls;
        settings.metrics_plaintext = self.metrics_plaintext.unwrap_or(settings.metrics_plaintext);
        settings.drain = self.drain.map_or(settings.drain, |Drain(time)| time);
    }
}

impl Layers<'_> {
    /// A PEM text: a file from any layer, or the text itself from the environment. Both is one too many.
    fn pem(&mut self, name: &str, flag: Option<PathBuf>, in_file: Option<String>) -> Option<Pem> {
        let variable = format!("DAMPER_{}_PEM", name.to_uppercase());
        let text = (self.env)(&variable).map(Pem::Text);
        let path = self.pick::<PathBuf>(name, flag, in_file).map(Pem::File);
        if text.is_some() && path.is_some() {
            self.fault(format!("{variable}: a file is named by {name} as well; give one of them"));
        }
        path.or(text)
    }

    fn fault(&mut self, text: impl Display) {
        self.faults.push(text.to_string());
    }
}
