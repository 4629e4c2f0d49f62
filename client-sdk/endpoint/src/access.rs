//! TLS and token settings: checked once, files read for every connection.
//!
//! Settings in code or flags have priority over variables. Token and token file form one setting, as do
//! certificate and key: each is taken from one source as a whole. The check does not read files, as a secret
//! may be mounted later.

use std::fmt;
use std::path::PathBuf;

use damper_core::Faults;
use tonic::transport::{Endpoint, Uri};

use crate::one_task::OneTask;
use crate::tls::Files;
use crate::token::Token;
use crate::{address, tls};

const CA_FILE: &str = "DAMPER_CA_FILE";
const CERT_FILE: &str = "DAMPER_CERT_FILE";
const KEY_FILE: &str = "DAMPER_KEY_FILE";
const SERVER_NAME: &str = "DAMPER_SERVER_NAME";
const TOKEN: &str = "DAMPER_TOKEN";
const TOKEN_FILE: &str = "DAMPER_TOKEN_FILE";
const ALLOW_PLAINTEXT: &str = "DAMPER_INSECURE_ALLOW_PLAINTEXT";

/// Settings from code or flags.
#[derive(Clone, Default)]
pub struct AccessSettings {
    /// PEM file with the authorities to trust. Default: those of the system.
    pub ca_file: Option<PathBuf>,
    /// PEM file with the client's certificate chain.
    pub cert_file: Option<PathBuf>,
    /// PEM file with the private key of the certificate.
    pub key_file: Option<PathBuf>,
    /// Name that the server's certificate must match. Default: the host of its address.
    pub server_name: Option<String>,
    /// The token.
    pub token: Option<String>,
    /// File with the token.
    pub token_file: Option<PathBuf>,
    /// Allows to send the token to another machine without encryption.
    pub allow_plaintext: bool,
}

/// How faults name a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// `ca_file`, as the setter.
    Code,
    /// `--ca-file`, as the flag.
    CommandLine,
}

/// Checked settings.
#[derive(Clone, Debug, Default)]
pub struct Access {
    files: Files,
    token: Source,
}

/// Settings of one connection.
#[derive(Debug)]
pub struct Opening {
    /// The address, with TLS if it requires it.
    pub endpoint: Endpoint,
    /// The token to send.
    pub token: Option<Token>,
}

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    Nowhere,
    /// A token and its source.
    Given(Token, String),
    /// A token file and its source.
    File(PathBuf, String),
}

impl Access {
    /// Takes each setting from the first source that has it. Faults are added under the name of the source;
    /// the result is then meaningless. `endpoints` are the addresses with their sources.
    pub fn resolve(
        settings: AccessSettings,
        speaker: Speaker,
        endpoints: &[(String, Uri)],
        env: &dyn Fn(&str) -> Option<String>,
        faults: &mut Faults,
    ) -> Self {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let (token_place, token) = token(&settings, speaker, &env, faults);
        let allowed = settings.allow_plaintext || plaintext_allowed(&env, faults);
        if token_place.is_some() && !allowed {
            refuse_plaintext(endpoints, speaker, faults);
        }
        let certificate = certificate(&settings, speaker, &env, faults);
        let name = settings.server_name.map(|name| (speaker.names("server_name"), name));
        let name = name.or_else(|| Some((SERVER_NAME.to_owned(), env(SERVER_NAME)?)));
        let server_name = name.map(|(place, name)| {
            if let Err(problem) = tls::check_name(&name) {
                faults.add(place, problem);
            }
            name
        });
        if server_name.is_none() {
            for (place, uri) in endpoints.iter().filter(|(_, uri)| address::is_tls(uri)) {
                if let Err(problem) = tls::check_name(address::host(uri)) {
                    faults.add(place, problem);
                }
            }
        }
        let ca_file = settings.ca_file.or_else(|| env(CA_FILE).map(PathBuf::from));
        Self { files: Files { ca_file, certificate, server_name }, token }
    }

    /// Returns true if [`open`](Self::open) reads files for this address, which may block.
    #[must_use]
    pub fn reads_files(&self, uri: &Uri) -> bool {
        address::is_tls(uri) || matches!(self.token, Source::File(..))
    }

    /// Reads the files for a connection to this address. Blocks.
    ///
    /// # Errors
    /// The file that cannot be used, with the reason.
    pub fn open(&self, uri: &Uri) -> Result<Opening, String> {
        let token = match &self.token {
            Source::Nowhere => None,
            Source::Given(token, _) => Some(token.clone()),
            Source::File(path, _) => Some(Token::read(path)?),
        };
        let mut endpoint = Endpoint::from(uri.clone()).executor(OneTask::default());
        if address::is_tls(uri) {
            endpoint = self.files.set_up(endpoint)?;
        }
        Ok(Opening { endpoint, token })
    }

    /// Returns the settings of [`open`](Self::open) for a diagnostic TLS handshake, with the name that the
    /// certificate must match. Blocks.
    ///
    /// # Errors
    /// The file that cannot be used, with the reason.
    #[cfg(feature = "tls")]
    pub fn handshake(
        &self,
        uri: &Uri,
    ) -> Result<(rustls::ClientConfig, rustls::pki_types::ServerName<'static>), String> {
        self.files.handshake(address::host(uri))
    }

    /// Returns true if a client certificate is configured.
    #[must_use]
    pub fn has_certificate(&self) -> bool {
        self.files.certificate.is_some()
    }

    /// Returns the source of the token, without the token.
    #[must_use]
    pub fn token_place(&self) -> Option<String> {
        match &self.token {
            Source::Nowhere => None,
            Source::Given(_, place) => Some(place.clone()),
            Source::File(path, place) => Some(format!("{place}, {}", path.display())),
        }
    }

    /// Returns true if a token is configured.
    #[must_use]
    pub fn has_token(&self) -> bool {
        !matches!(self.token, Source::Nowhere)
    }
}

impl Speaker {
    fn names(self, setting: &str) -> String {
        match self {
            Self::Code => setting.to_owned(),
            Self::CommandLine => format!("--{}", setting.replace('_', "-")),
        }
    }
}

impl fmt::Debug for AccessSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ca_file, cert_file, key_file, server_name, token, token_file, allow_plaintext } = self;
        f.debug_struct("AccessSettings")
            .field("ca_file", ca_file)
            .field("cert_file", cert_file)
            .field("key_file", key_file)
            .field("server_name", server_name)
            .field("token", &token.as_ref().map(|_| "[hidden]"))
            .field("token_file", token_file)
            .field("allow_plaintext", allow_plaintext)
            .finish()
    }
}

/// Returns the token and the name of its source.
fn token(
    settings: &AccessSettings,
    speaker: Speaker,
    env: &dyn Fn(&str) -> Option<String>,
    faults: &mut Faults,
) -> (Option<String>, Source) {
    let by_code = settings.token.is_some() || settings.token_file.is_some();
    let (text, file, places) = match by_code {
        true => {
            let places = [speaker.names("token"), speaker.names("token_file")];
            (settings.token.clone(), settings.token_file.clone(), places)
        }
        false => {
            let places = [TOKEN.to_owned(), TOKEN_FILE.to_owned()];
            (env(TOKEN), env(TOKEN_FILE).map(PathBuf::from), places)
        }
    };
    let [token, token_file] = places;
    match (text, file) {
        (None, None) => (None, Source::Nowhere),
        (Some(_), Some(_)) => {
            faults
                .add(&token_file, format!("conflicts with {token}, which is set too; set only one of them"));
            (Some(token_file), Source::Nowhere)
        }
        (None, Some(file)) => (Some(token_file.clone()), Source::File(file, token_file)),
        (Some(text), None) => match Token::parse(&text) {
            Ok(parsed) => (Some(token.clone()), Source::Given(parsed, token)),
            Err(problem) => {
                faults.add(&token, problem);
                (Some(token), Source::Nowhere)
            }
        },
    }
}

/// Returns the files of the client's certificate and key.
fn certificate(
    settings: &AccessSettings,
    speaker: Speaker,
    env: &dyn Fn(&str) -> Option<String>,
    faults: &mut Faults,
) -> Option<(PathBuf, PathBuf)> {
    let by_code = settings.cert_file.is_some() || settings.key_file.is_some();
    let (cert, key, places) = match by_code {
        true => {
            let places = [speaker.names("cert_file"), speaker.names("key_file")];
            (settings.cert_file.clone(), settings.key_file.clone(), places)
        }
        false => {
            let file = |name| env(name).map(PathBuf::from);
            (file(CERT_FILE), file(KEY_FILE), [CERT_FILE.to_owned(), KEY_FILE.to_owned()])
        }
    };
    let [cert_place, key_place] = places;
    match (cert, key) {
        (Some(cert), Some(key)) => return Some((cert, key)),
        (Some(_), None) => faults.add(key_place, format!("required, because {cert_place} is set")),
        (None, Some(_)) => faults.add(cert_place, format!("required, because {key_place} is set")),
        (None, None) => {}
    }
    None
}

fn plaintext_allowed(env: &dyn Fn(&str) -> Option<String>, faults: &mut Faults) -> bool {
    match env(ALLOW_PLAINTEXT).as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(other) => {
            faults.add(ALLOW_PLAINTEXT, format!("{other:?}, must be true or false"));
            false
        }
    }
}

fn refuse_plaintext(endpoints: &[(String, Uri)], speaker: Speaker, faults: &mut Faults) {
    let allow = match speaker {
        Speaker::Code => format!("Options::allow_plaintext or {ALLOW_PLAINTEXT}=true"),
        Speaker::CommandLine => format!("{ALLOW_PLAINTEXT}=true"),
    };
    for (place, uri) in endpoints {
        if !address::is_tls(uri) && !address::is_loopback(uri) {
            let problem =
                format!("the token would be sent to {uri} without encryption; use https:// or set {allow}");
            faults.add(place, problem);
        }
    }
}

#[cfg(test)]
mod tests;
