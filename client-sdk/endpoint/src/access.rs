//! What was said about TLS and tokens, checked; and read, at every connection attempt.
//!
//! What code or a flag says wins over variables. Token and token file are one setting in two forms, certificate and
//! key one setting of two files: one place says it whole. Files are not looked at when it is checked: a mounted
//! secret may come later.

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

/// What was said in code or by flags.
#[derive(Clone, Default)]
pub struct Said {
    /// A PEM file with the authorities that may have issued the server's certificate; none = the system's.
    pub ca_file: Option<PathBuf>,
    /// A PEM file with the client's certificate and those between it and its authority.
    pub cert_file: Option<PathBuf>,
    /// A PEM file with the private key of that certificate.
    pub key_file: Option<PathBuf>,
    /// The name that the server's certificate must be for; none = the host of its address.
    pub server_name: Option<String>,
    /// The token to show.
    pub token: Option<String>,
    /// A file with the token to show.
    pub token_file: Option<PathBuf>,
    /// The token may be shown without encryption to another machine.
    pub allow_plaintext: bool,
}

/// In whose words arguments are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// `ca_file`, the setter of that name.
    Code,
    /// `--ca-file`.
    CommandLine,
}

/// What was said, checked.
#[derive(Clone, Debug, Default)]
pub struct Access {
    files: Files,
    token: Source,
}

/// What a connection attempt needs.
#[derive(Debug)]
pub struct Opening {
    /// The address, with TLS set up where it asks for it.
    pub endpoint: Endpoint,
    /// What to show there.
    pub token: Option<Token>,
}

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    Nowhere,
    /// Said at this place.
    Given(Token, String),
    /// The same of its file's name.
    File(PathBuf, String),
}

impl Access {
    /// Decides each setting by the first place that says it. What is wrong is noted under the name of that place;
    /// the result is meaningless then. `endpoints`: where each came from, and what it is.
    pub fn resolve(
        said: Said,
        speaker: Speaker,
        endpoints: &[(String, Uri)],
        env: &dyn Fn(&str) -> Option<String>,
        faults: &mut Faults,
    ) -> Self {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let (token_place, token) = token(&said, speaker, &env, faults);
        let allowed = said.allow_plaintext || plaintext_allowed(&env, faults);
        if token_place.is_some() && !allowed {
            refuse_plaintext(endpoints, speaker, faults);
        }
        let certificate = certificate(&said, speaker, &env, faults);
        let name = said.server_name.map(|name| (speaker.names("server_name"), name));
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
        let ca_file = said.ca_file.or_else(|| env(CA_FILE).map(PathBuf::from));
        Self { files: Files { ca_file, certificate, server_name }, token }
    }

    /// True if [`open`](Self::open) reads files for this address, which may take its time.
    #[must_use]
    pub fn reads_files(&self, uri: &Uri) -> bool {
        address::is_tls(uri) || matches!(self.token, Source::File(..))
    }

    /// Reads what is needed to connect to this address. Blocks while it reads.
    ///
    /// # Errors
    /// Which file is of no use, and why.
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

    /// What a TLS handshake with this address needs that is made to find out what is wrong with it: the settings of
    /// [`open`](Self::open), and the name that the certificate must be for. Blocks while it reads files.
    ///
    /// # Errors
    /// Which file is of no use, and why.
    #[cfg(feature = "tls")]
    pub fn handshake(
        &self,
        uri: &Uri,
    ) -> Result<(rustls::ClientConfig, rustls::pki_types::ServerName<'static>), String> {
        self.files.handshake(address::host(uri))
    }

    /// True if a certificate of our own is shown to servers that ask for one.
    #[must_use]
    pub fn has_certificate(&self) -> bool {
        self.files.certificate.is_some()
    }

    /// Where the token that is shown comes from, in words that do not hold it.
    #[must_use]
    pub fn token_place(&self) -> Option<String> {
        match &self.token {
            Source::Nowhere => None,
            Source::Given(_, place) => Some(place.clone()),
            Source::File(path, place) => Some(format!("{place}, {}", path.display())),
        }
    }

    /// True if a token is shown.
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

impl fmt::Debug for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ca_file, cert_file, key_file, server_name, token, token_file, allow_plaintext } = self;
        f.debug_struct("Said")
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

/// The token, and which place said it.
fn token(
    said: &Said,
    speaker: Speaker,
    env: &dyn Fn(&str) -> Option<String>,
    faults: &mut Faults,
) -> (Option<String>, Source) {
    let by_code = said.token.is_some() || said.token_file.is_some();
    let (text, file, places) = match by_code {
        true => {
            let places = [speaker.names("token"), speaker.names("token_file")];
            (said.token.clone(), said.token_file.clone(), places)
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
            faults.add(&token_file, format!("is said besides {token}: say one of them"));
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

/// The files of the client's certificate and its key.
fn certificate(
    said: &Said,
    speaker: Speaker,
    env: &dyn Fn(&str) -> Option<String>,
    faults: &mut Faults,
) -> Option<(PathBuf, PathBuf)> {
    let by_code = said.cert_file.is_some() || said.key_file.is_some();
    let (cert, key, places) = match by_code {
        true => {
            let places = [speaker.names("cert_file"), speaker.names("key_file")];
            (said.cert_file.clone(), said.key_file.clone(), places)
        }
        false => {
            let file = |name| env(name).map(PathBuf::from);
            (file(CERT_FILE), file(KEY_FILE), [CERT_FILE.to_owned(), KEY_FILE.to_owned()])
        }
    };
    let [cert_place, key_place] = places;
    match (cert, key) {
        (Some(cert), Some(key)) => return Some((cert, key)),
        (Some(_), None) => {
            faults.add(key_place, format!("is not said, but {cert_place} is: one needs the other"))
        }
        (None, Some(_)) => {
            faults.add(cert_place, format!("is not said, but {key_place} is: one needs the other"))
        }
        (None, None) => {}
    }
    None
}

fn plaintext_allowed(env: &dyn Fn(&str) -> Option<String>, faults: &mut Faults) -> bool {
    match env(ALLOW_PLAINTEXT).as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(other) => {
            faults.add(ALLOW_PLAINTEXT, format!("{other:?} is neither true nor false"));
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
            let problem = format!(
                "the token would go to {uri} without encryption: use https://, or allow it by {allow}"
            );
            faults.add(place, problem);
        }
    }
}

#[cfg(test)]
mod tests;
