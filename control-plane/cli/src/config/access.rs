//! Settings of access: authentication, first token, names of clients.
//!
//! The first token has no flag, only its file has.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use damper_control_plane::{Auth, ClientIdentity, PageOrigin, ServerConfig};

use super::{File, Layers, Text};

/// Flags of access.
#[derive(Args, Debug, Default)]
pub(super) struct AccessArgs {
    /// How services, operators and the web UI authenticate to the control plane [env: DAMPER_AUTH] [default:
    /// none]
    #[arg(long, value_name = "METHOD")]
    auth: Option<Authentication>,
    /// With --auth tokens: file for the first admin token. If the store has no admin token, the token in this
    /// file is accepted; if there is no such file, the server creates it with a new token (mode 0600) [env:
    /// DAMPER_BOOTSTRAP_TOKEN_FILE]
    #[arg(long, value_name = "FILE")]
    bootstrap_token_file: Option<PathBuf>,
    /// Origin under which browsers reach the web UI behind a proxy, such as https://damper.example.com;
    /// repeatable [env: DAMPER_PAGE_ORIGIN, comma-separated] [default: the host of the request]
    #[arg(long, value_name = "URL")]
    page_origin: Vec<PageOrigin>,
    /// Template that shows where a SPIFFE id or DNS name in a client certificate has the name of the service,
    /// such as 'spiffe://example.org/ns/*/sa/{service}'; repeatable [env: DAMPER_CLIENT_IDENTITY,
    /// comma-separated] [default: the last part of a SPIFFE id, or a whole DNS name]
    #[arg(long, value_name = "TEMPLATE")]
    client_identity: Vec<ClientIdentity>,
}

/// Authentication of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Authentication {
    /// No authentication: each client that reaches the server has all permissions
    None,
    /// Each client needs a token, a client certificate or a session of the web UI
    Tokens,
}

impl FromStr for Authentication {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as ValueEnum>::from_str(text, false).map_err(|_| "must be none or tokens".to_owned())
    }
}

/// Settings of access, merged.
#[derive(Debug)]
pub(super) struct Access {
    auth: Option<Authentication>,
    bootstrap_token_file: Option<PathBuf>,
    page_origins: Vec<PageOrigin>,
    client_identities: Vec<ClientIdentity>,
}

impl Access {
    pub(super) fn pick(layers: &mut Layers<'_>, args: AccessArgs, file: &mut File) -> Self {
        let auth = layers.pick("auth", args.auth, file.auth.take());
        let first = "bootstrap_token_file";
        let bootstrap_token_file =
            layers.pick(first, args.bootstrap_token_file, file.bootstrap_token_file.take());
        if bootstrap_token_file.is_some() && auth != Some(Authentication::Tokens) {
            layers.faults.push(format!("{first}: conflicts with auth: none; set auth: tokens"));
        }
        let page_origins = layers.all("page_origin", args.page_origin, file.page_origin.take());
        let client_identities =
            layers.all("client_identity", args.client_identity, file.client_identity.take());
        Self { auth, bootstrap_token_file, page_origins, client_identities }
    }

    pub(super) fn put(self, settings: &mut ServerConfig) {
        settings.auth = match self.auth {
            Some(Authentication::Tokens) => Auth::Tokens,
            Some(Authentication::None) => Auth::None,
            None => settings.auth,
        };
        settings.bootstrap_token_file = self.bootstrap_token_file;
        settings.page_origins = self.page_origins;
        settings.client_identities = self.client_identities;
    }
}

impl Layers<'_> {
    /// Returns all values of a repeatable setting, from the first layer that sets any.
    fn all<T: FromStr<Err: std::fmt::Display>>(
        &mut self,
        name: &str,
        flags: Vec<T>,
        in_file: Option<Vec<Text>>,
    ) -> Vec<T> {
        if !flags.is_empty() {
            return flags;
        }
        let variable = format!("DAMPER_{}", name.to_uppercase());
        let (place, texts) = match (self.env)(&variable) {
            Some(text) => (variable, text.split(',').map(|part| part.trim().to_owned()).collect()),
            None => {
                let texts: Vec<_> = in_file.into_iter().flatten().map(|Text(text)| text).collect();
                (format!("{}: {name}", self.file), texts)
            }
        };
        texts.iter().filter_map(|text| self.read(&place, text)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ServeArgs, settle};

    fn said(env: &[(&str, &str)]) -> Result<ServerConfig, String> {
        let env =
            |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        settle(ServeArgs::default(), &env).map(|config| config.server).map_err(|error| error.to_string())
    }

    #[test]
    fn repeated_names_are_comma_separated_in_variables() {
        let server = said(&[
            ("DAMPER_AUTH", "tokens"),
            ("DAMPER_BOOTSTRAP_TOKEN_FILE", "first"),
            ("DAMPER_PAGE_ORIGIN", "https://a.example, http://b.example:8080"),
            ("DAMPER_CLIENT_IDENTITY", "spiffe://x/sa/{service}"),
        ]);
        let server = server.unwrap();
        assert_eq!(server.auth, Auth::Tokens);
        assert_eq!(server.bootstrap_token_file, Some(PathBuf::from("first")));
        let origins = ["https://a.example", "http://b.example:8080"].map(|origin| origin.parse().unwrap());
        assert_eq!(server.page_origins, origins);
        assert_eq!(server.client_identities, ["spiffe://x/sa/{service}".parse().unwrap()]);
    }

    #[test]
    fn all_faults_have_their_place() {
        let told = said(&[
            ("DAMPER_AUTH", "some"),
            ("DAMPER_BOOTSTRAP_TOKEN_FILE", "first"),
            ("DAMPER_PAGE_ORIGIN", "a.example"),
            ("DAMPER_CLIENT_IDENTITY", "spiffe://x/sa/name"),
        ]);
        let told = told.unwrap_err();
        for part in [
            "DAMPER_AUTH: \"some\": must be none or tokens",
            "bootstrap_token_file: conflicts with auth: none",
            "DAMPER_PAGE_ORIGIN: \"a.example\": is not an origin",
            "DAMPER_CLIENT_IDENTITY: \"spiffe://x/sa/name\": the template must have {service} exactly once",
        ] {
            assert!(told.contains(part), "{part} is not in {told}");
        }
    }
}
