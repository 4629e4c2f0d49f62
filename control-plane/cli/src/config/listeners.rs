//! Settings of the listeners: certificate, client certificates, drain.
//!
//! The key has no flag, only its file has. Without files the texts come from the environment
//! (`DAMPER_TLS_CERT_PEM` and the like).

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use damper_control_plane::{ClientCertificates, Pem, ServerConfig, TlsConfig};

use super::{File, Layers, Text};

/// Flags of the listeners.
#[derive(Args, Debug, Default)]
pub(super) struct DoorArgs {
    /// PEM file with the server certificate chain; reloaded when it changes
    /// [env: DAMPER_TLS_CERT, or the text itself in DAMPER_TLS_CERT_PEM] [default: no TLS]
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the private key of the server certificate [env: DAMPER_TLS_KEY, or the text itself in
    /// DAMPER_TLS_KEY_PEM]
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// PEM file with the CA certificates that verify client certificates [env: DAMPER_TLS_CLIENT_CA, or the
    /// text itself in DAMPER_TLS_CLIENT_CA_PEM] [default: no client certificates]
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    /// Whether clients must present a certificate [env: DAMPER_TLS_CLIENT_CERTS] [default: optional]
    #[arg(long, value_name = "WHETHER")]
    tls_client_certs: Option<Shown>,
    /// Serve the metrics without TLS on the address of --metrics-listen [env: DAMPER_METRICS_PLAINTEXT]
    #[arg(long)]
    metrics_plaintext: bool,
    /// Time that the server waits at shutdown for open connections to end, at most 1h; then it closes them
    /// [env: DAMPER_DRAIN] [default: 3s]
    #[arg(long, value_name = "TIME")]
    drain: Option<Drain>,
}

/// Whether clients must present a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shown {
    /// A certificate, if presented, must be valid
    Optional,
    /// Connections without a certificate are rejected
    Required,
}

impl FromStr for Shown {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as ValueEnum>::from_str(text, false).map_err(|_| "must be optional or required".to_owned())
    }
}

/// Time for open connections to end.
#[derive(Clone, Copy, Debug)]
struct Drain(Duration);

impl FromStr for Drain {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let most = Duration::from_secs(3600);
        match humantime::parse_duration(text) {
            Ok(time) if time <= most => Ok(Self(time)),
            Ok(_) => Err("must be at most 1h".to_owned()),
            Err(_) => Err("must be a duration such as 3s or 1m".to_owned()),
        }
    }
}

/// Settings of the listeners, merged.
#[derive(Debug)]
pub(super) struct ListenerConfig {
    tls: Option<TlsConfig>,
    metrics_plaintext: Option<bool>,
    drain: Option<Drain>,
}

impl ListenerConfig {
    pub(super) fn pick(layers: &mut Layers<'_>, args: DoorArgs, file: &mut File) -> Self {
        let certificate = layers.pem("tls_cert", args.tls_cert, file.tls_cert.take());
        let key = layers.pem("tls_key", args.tls_key, file.tls_key.take());
        let client_ca = layers.pem("tls_client_ca", args.tls_client_ca, file.tls_client_ca.take());
        let shown = layers.pick("tls_client_certs", args.tls_client_certs, file.tls_client_certs.take());
        let tls = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(TlsConfig::new(certificate, key)),
            (None, None) => {
                let needless = match (&client_ca, shown) {
                    (Some(_), _) => Some("tls_client_ca"),
                    (None, Some(Shown::Required)) => Some("tls_client_certs"),
                    (None, _) => None,
                };
                if let Some(setting) = needless {
                    layers.fault(format!(
                        "{setting}: client certificates require TLS; set tls_cert and tls_key too"
                    ));
                }
                None
            }
            (Some(_), None) => {
                layers.fault("tls_key: required, because tls_cert is set");
                None
            }
            (None, Some(_)) => {
                layers.fault("tls_cert: required, because tls_key is set");
                None
            }
        };
        let client_certificates = match shown {
            Some(Shown::Required) => ClientCertificates::Required,
            Some(Shown::Optional) | None => ClientCertificates::Optional,
        };
        if client_certificates == ClientCertificates::Required && client_ca.is_none() && tls.is_some() {
            layers.fault("tls_client_certs is `required`, but tls_client_ca (the CA that verifies client certificates) is not set");
        }
        let tls = tls.map(|tls| TlsConfig { client_ca, client_certificates, ..tls });
        let given = args.metrics_plaintext.then_some(true);
        let metrics_plaintext = layers.pick("metrics_plaintext", given, file.metrics_plaintext.take());
        let drain = layers.pick("drain", args.drain, file.drain.take());
        Self { tls, metrics_plaintext, drain }
    }

    pub(super) fn put(self, settings: &mut ServerConfig) {
        settings.tls = self.tls;
        settings.metrics_plaintext = self.metrics_plaintext.unwrap_or(settings.metrics_plaintext);
        settings.drain = self.drain.map_or(settings.drain, |Drain(time)| time);
    }
}

impl Layers<'_> {
    /// Returns a PEM text: a file from any layer, or the text itself from the environment. Both are a fault.
    fn pem(&mut self, name: &str, flag: Option<PathBuf>, in_file: Option<Text>) -> Option<Pem> {
        let variable = format!("DAMPER_{}_PEM", name.to_uppercase());
        let text = (self.env)(&variable).map(Pem::Text);
        let path = self.pick::<PathBuf>(name, flag, in_file).map(Pem::File);
        if text.is_some() && path.is_some() {
            self.fault(format!("{variable}: conflicts with {name}, which is set too; set only one of them"));
        }
        path.or(text)
    }

    fn fault(&mut self, text: impl Display) {
        self.faults.push(text.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, ServeArgs, settle};
    use super::*;
    use crate::error::CliError;

    fn settled(env: &[(&str, &str)], file: &str) -> Result<Config, CliError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("damper.yaml");
        std::fs::write(&path, file).unwrap();
        let env =
            |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        settle(ServeArgs { config: Some(path), ..ServeArgs::default() }, &env)
    }

    #[test]
    fn certificates_come_from_files_or_as_text_from_the_environment() {
        let file = "tls_cert: /c.pem\ntls_key: /k.pem\ntls_client_ca: /ca.pem\ntls_client_certs: required\n\
                    metrics_plaintext: true\ndrain: 25s\n";
        let server = settled(&[], file).unwrap().server;
        let tls = server.tls.unwrap();
        assert_eq!(tls.certificate, Pem::File("/c.pem".into()));
        assert_eq!(tls.key, Pem::File("/k.pem".into()));
        assert_eq!(tls.client_ca, Some(Pem::File("/ca.pem".into())));
        assert_eq!(tls.client_certificates, ClientCertificates::Required);
        assert!(server.metrics_plaintext);
        assert_eq!(server.drain.as_secs(), 25);

        let env = [("DAMPER_TLS_CERT_PEM", "cert"), ("DAMPER_TLS_KEY_PEM", "hidden")];
        let config = settled(&env, "").unwrap();
        assert!(!format!("{config:?}").contains("hidden"), "{config:?}");
        assert_eq!(config.server.tls.unwrap().key, Pem::Text("hidden".to_owned()));
    }

    #[test]
    fn missing_parts_of_a_certificate_are_faults() {
        for (env, problem) in [
            (&[("DAMPER_TLS_CERT", "/c.pem")][..], "tls_key: required, because tls_cert is set"),
            (&[("DAMPER_TLS_KEY_PEM", "k")], "tls_cert: required, because tls_key is set"),
            (&[("DAMPER_TLS_CLIENT_CA", "/ca.pem")], "tls_client_ca: client certificates require TLS"),
            (&[("DAMPER_TLS_CLIENT_CERTS", "required")], "tls_client_certs: client certificates require TLS"),
            (
                &[("DAMPER_TLS_CERT", "c"), ("DAMPER_TLS_KEY", "k"), ("DAMPER_TLS_CLIENT_CERTS", "required")],
                "but tls_client_ca (the CA",
            ),
            (
                &[("DAMPER_TLS_CERT", "c"), ("DAMPER_TLS_CERT_PEM", "c"), ("DAMPER_TLS_KEY", "k")],
                "DAMPER_TLS_CERT_PEM: conflicts with tls_cert",
            ),
        ] {
            let error = settled(env, "").unwrap_err();
            assert_eq!(error.code(), 78);
            assert!(error.to_string().contains(problem), "{error}");
        }
    }

    #[test]
    fn limits_can_be_set_and_unknown_ones_list_the_known() {
        let file = "limits:\n  first_byte_within: 1s\n  max_connections: 7\n  max_message_bytes: 2MiB\n  reads_burst: 5\n";
        let env = [("DAMPER_LIMITS_MAX_CONNECTIONS", "8"), ("DAMPER_LIMITS_UNARY_DEADLINE", "1m")];
        let server = settled(&env, file).unwrap().server;
        assert_eq!(server.limits.first_byte_within.as_secs(), 1);
        assert_eq!(server.limits.max_connections, 8);
        assert_eq!(server.limits.max_message_bytes, 2 << 20);
        assert_eq!(server.limits.reads.burst.get(), 5);
        assert_eq!(server.unary_deadline.as_secs(), 60);

        let file = "limits: { max_conections: 7, handshake_within: 0s, writes_burst: 0 }\ndrain: 2h\n";
        let text = settled(&[], file).unwrap_err().to_string();
        for part in [
            "damper.yaml: limits.max_conections: unknown (known: first_byte_within, ",
            "damper.yaml: limits.handshake_within: \"0s\": must be between 100ms and 24h",
            "damper.yaml: limits.writes_burst: \"0\": must be between 1 and 4294967295",
            "damper.yaml: drain: \"2h\": must be at most 1h",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
