//! Access control on a server that requires tokens.

mod ends;
mod matrix;
mod raw;
mod sessions;
mod sites;
mod tokens;

use bytes::Bytes;
use damper_control_plane::Auth;
use damper_proto::v1;
use damper_proto::v1::tokens_client::TokensClient;
use damper_store::{Change, Edit};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use tempfile::TempDir;
use tonic::codegen::InterceptedService;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_types::StatusExt as _;

use crate::harness::{Running, settings_in, soon, start_in};

const CLUSTER_KEY: [u8; 32] = [7; 32];

/// A server that requires tokens.
pub(crate) struct Guarded {
    pub(crate) server: Running,
    /// The first token.
    pub(crate) admin: String,
}

/// Sends a token with every call.
#[derive(Clone)]
pub(crate) struct Bearer(MetadataValue<Ascii>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}

pub(crate) fn bearer(token: &str) -> Bearer {
    Bearer(format!("Bearer {token}").parse().unwrap())
}

impl Guarded {
    pub(crate) async fn start() -> Self {
        Self::start_in(TempDir::new().unwrap()).await
    }

    pub(crate) async fn start_in(folder: TempDir) -> Self {
        let file = folder.path().join("first-token");
        let first = file.clone();
        let server = start_in(folder, |settings| {
            settings.auth = Auth::Tokens;
            settings.bootstrap_token_file = Some(first);
        });
        let server = server.await;
        let admin = std::fs::read_to_string(file).unwrap().trim().to_owned();
        Self { server, admin }
    }

    pub(crate) fn tokens(&self) -> TokensClient<InterceptedService<Channel, Bearer>> {
        self.tokens_as(&self.admin)
    }

    pub(crate) fn tokens_as(&self, token: &str) -> TokensClient<InterceptedService<Channel, Bearer>> {
        TokensClient::with_interceptor(self.server.channel(), bearer(token))
    }

    pub(crate) async fn try_make(
        &self,
        request: v1::CreateTokenRequest,
    ) -> Result<v1::CreateTokenResponse, Status> {
        soon(self.tokens().create_token(request)).await.map(tonic::Response::into_inner)
    }

    /// Creates a token; returns its id and its text.
    pub(crate) async fn make(&self, request: v1::CreateTokenRequest) -> (String, String) {
        let made = self.try_make(request).await.unwrap();
        (made.token.unwrap().id, made.secret)
    }

    pub(crate) async fn token(&self, role: v1::Role, callers: &[&str], callees: &[&str]) -> String {
        self.make(wanted(role, callers, callees)).await.1
    }

    pub(crate) async fn revoke(&self, id: &str) -> Result<v1::RevokeTokenResponse, Status> {
        let request = v1::RevokeTokenRequest { id: id.to_owned(), options: None };
        soon(self.tokens().revoke_token(request)).await.map(tonic::Response::into_inner)
    }
}

pub(crate) fn wanted(role: v1::Role, callers: &[&str], callees: &[&str]) -> v1::CreateTokenRequest {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let limited = !callers.is_empty() || !callees.is_empty();
    v1::CreateTokenRequest {
        name: format!("a {}", role.as_str_name()),
        role: role.into(),
        scope: limited.then(|| v1::Scope { callers: owned(callers), callees: owned(callees) }),
        ..Default::default()
    }
}

/// Returns the machine-readable reason of a denial.
pub(crate) fn reason(status: &Status) -> String {
    let info = status.get_details_error_info().unwrap_or_else(|| panic!("no reason: {status:?}"));
    assert_eq!(info.domain, "damper.v1");
    info.reason
}

/// Creates a folder with a store whose cluster key is known.
async fn folder_with_known_key() -> TempDir {
    let folder = TempDir::new().unwrap();
    let store = settings_in(&folder).store.open().await.unwrap();
    let value = Some(Bytes::copy_from_slice(&CLUSTER_KEY));
    let change = Change {
        revision: 1,
        commit: 0,
        at: std::time::SystemTime::now(),
        author: String::new(),
        reason: String::new(),
        peer: String::new(),
        principal: String::new(),
        request_id: String::new(),
        request_digest: 0,
        edits: vec![Edit { key: "secrets/cluster".to_owned(), value, before: None }],
    };
    store.commit(0, &[change]).await.unwrap();
    folder
}

/// Returns the credential of a replica under the known key.
fn replica_credential() -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(&CLUSTER_KEY).unwrap();
    mac.update(b"replicas");
    let digest = mac.finalize().into_bytes();
    format!("damper-replica_{}", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}
