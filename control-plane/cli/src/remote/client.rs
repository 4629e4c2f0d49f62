//! gRPC clients of a control plane.
//!
//! A call may take as long as the server allows. Lists are read to their last page.

use std::error::Error as _;
use std::time::{Duration, Instant};

use damper_proto::v1::fleet_client::FleetClient;
use damper_proto::v1::guards_client::GuardsClient;
use damper_proto::v1::history_client::HistoryClient;
use damper_proto::v1::kills_client::KillsClient;
use damper_proto::v1::queues_client::QueuesClient;
use damper_proto::v1::rules_client::RulesClient;
use damper_proto::v1::tokens_client::TokensClient;
use damper_proto::v1::{self, RuleFilter};
use futures_util::Stream;
use tonic::{Response, Status};

use crate::error::{CliError, as_is, print_message};
use crate::input::key;
use crate::output::printable;
pub(crate) use crate::remote::connection::ServerArgs;
use crate::remote::connection::{self, Line};
use crate::remote::status::{self, Locate, Peer};

/// The server ends a unary call after 30 s. A little more, so that its own error arrives.
const CALL_TIMEOUT: Duration = Duration::from_secs(32);
/// A page of 1000 rules of 64 KiB.
const MAX_ANSWER_BYTES: usize = 80 << 20;
/// Shortest time between two connections.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);
/// Longest page of the server.
const PAGE: u32 = 1000;

/// A connected control plane.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    peer: Peer,
    args: ServerArgs,
    /// Number of connections in a row, without this one, that received no message.
    silent: usize,
    /// Time of the connection, at which a command begins.
    pub(crate) connected_at: Instant,
    pub(crate) rules: RulesClient<Line>,
    pub(crate) guards: GuardsClient<Line>,
    pub(crate) queues: QueuesClient<Line>,
    pub(crate) fleet: FleetClient<Line>,
    pub(crate) history: HistoryClient<Line>,
    pub(crate) kills: KillsClient<Line>,
    pub(crate) tokens: TokensClient<Line>,
}

impl Client {
    /// Connects; errors within five seconds.
    pub(crate) async fn connect(args: &ServerArgs) -> Result<Self, CliError> {
        Self::connect_after(args, None, 0).await
    }

    /// Connects to the next reachable server after this connection broke, and reports that on stderr.
    /// `received`: this connection received a message.
    ///
    /// Returns `broken` once every server failed.
    pub(crate) async fn next(&self, received: bool, broken: CliError) -> Result<Self, CliError> {
        let silent = if received { 0 } else { self.silent + 1 };
        if silent >= connection::count(&self.args) {
            return Err(broken);
        }
        // Limits the rate of reconnects to a server that accepts connections and closes them.
        tokio::time::sleep(RECONNECT_AFTER.saturating_sub(self.connected_at.elapsed())).await;
        let next = Self::connect_after(&self.args, Some(&self.peer), silent).await?;
        print_message(format_args!("{} was lost; going on with {}", self.peer.address, next.peer.address));
        Ok(next)
    }

    async fn connect_after(args: &ServerArgs, lost: Option<&Peer>, silent: usize) -> Result<Self, CliError> {
        let (peer, channel) = connection::connect(args, lost, &|name| std::env::var(name).ok()).await?;
        Ok(Self {
            peer,
            args: args.clone(),
            silent,
            connected_at: Instant::now(),
            rules: RulesClient::new(channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES),
            guards: GuardsClient::new(channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES),
            queues: QueuesClient::new(channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES),
            history: HistoryClient::new(channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES),
            kills: KillsClient::new(channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES),
            tokens: TokensClient::new(channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES),
            fleet: FleetClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES),
        })
    }

    /// Returns the error of a status.
    pub(crate) fn failure(&self, status: &Status) -> CliError {
        status::failure(&self.peer, status, &as_is)
    }

    /// Returns the error of a status, with fields located by `locate`. Probes the server if the connection
    /// failed.
    pub(crate) async fn why(&self, status: &Status, asked_at: Instant, locate: Locate<'_>) -> CliError {
        match status.source() {
            Some(_) => status::unreachable(&[status::looked_into(&self.peer, status, asked_at).await]),
            None => status::failure(&self.peer, status, locate),
        }
    }

    /// Waits for a response, with a timeout.
    pub(crate) async fn answer<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CliError> {
        self.answer_in(call, &as_is).await
    }

    /// Like `answer`, with fields located by `locate`.
    pub(crate) async fn answer_in<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
        locate: Locate<'_>,
    ) -> Result<T, CliError> {
        let asked_at = Instant::now();
        match tokio::time::timeout(CALL_TIMEOUT, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.why(&status, asked_at, locate).await),
            Err(_) => {
                let after = CALL_TIMEOUT.as_secs();
                Err(CliError::Unavailable(format!("{} did not answer within {after}s", self.peer.address)))
            }
        }
    }

    /// Returns the rule with this pattern.
    pub(crate) async fn rule(&self, key: v1::Pattern) -> Result<v1::Rule, CliError> {
        let request = v1::GetRuleRequest { key: Some(key.clone()), min_revision: 0 };
        match self.answer(self.rules.clone().get_rule(request)).await {
            Err(CliError::Missing(problem)) => {
                let near = self.rules_near(&key).await.into_iter().map(|near| format!("there is: {near}"));
                let lines: Vec<_> = std::iter::once(problem).chain(near).collect();
                Err(CliError::Missing(lines.join("\n")))
            }
            answer => answer,
        }
    }

    /// Returns the keys of rules for the same callee that share most words with this one; empty on errors.
    async fn rules_near(&self, key: &v1::Pattern) -> Vec<String> {
        let filter = RuleFilter { callee_service: Some(key.callee_service.clone()), ..RuleFilter::default() };
        let request =
            v1::ListRulesRequest { filter: Some(filter), page_size: PAGE, ..v1::ListRulesRequest::default() };
        let Ok(page) = self.answer(self.rules.clone().list_rules(request)).await else { return Vec::new() };
        let wanted = key::columns(Some(key));
        let mut near: Vec<_> = page.rules.iter().map(|rule| key::columns(rule.key.as_ref())).collect();
        near.sort_by_key(|words| words.iter().zip(&wanted).filter(|(word, wanted)| word != wanted).count());
        near.into_iter().take(3).map(|words| printable(&words.join(" "))).collect()
    }

    /// Returns the guard with this pattern.
    pub(crate) async fn guard(&self, key: v1::Pattern) -> Result<v1::Guard, CliError> {
        let request = v1::GetGuardRequest { key: Some(key), min_revision: 0 };
        self.answer(self.guards.clone().get_guard(request)).await
    }

    /// Returns all guards that match the filter.
    pub(crate) async fn all_guards(&self, filter: &RuleFilter) -> Result<v1::ListGuardsResponse, CliError> {
        let mut guards = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = v1::ListGuardsRequest {
                filter: Some(filter.clone()),
                page_size: PAGE,
                page_token,
                min_revision: 0,
            };
            let page = self.answer(self.guards.clone().list_guards(request)).await?;
            guards.extend(page.guards);
            if page.next_page_token.is_empty() {
                return Ok(v1::ListGuardsResponse { guards, ..page });
            }
            page_token = page.next_page_token;
        }
    }

    /// Returns the queue with this name.
    pub(crate) async fn queue(&self, name: &str) -> Result<v1::Queue, CliError> {
        let request = v1::GetQueueRequest { name: name.to_owned(), min_revision: 0 };
        self.answer(self.queues.clone().get_queue(request)).await
    }

    /// Returns all queues whose name or owner contains the text.
    pub(crate) async fn all_queues(&self, text: &str) -> Result<Vec<v1::Queue>, CliError> {
        let mut queues = Vec::new();
        let mut page_token = String::new();
        loop {
            let text = text.to_owned();
            let request = v1::ListQueuesRequest { text, page_size: PAGE, page_token, min_revision: 0 };
            let page = self.answer(self.queues.clone().list_queues(request)).await?;
            queues.extend(page.queues);
            if page.next_page_token.is_empty() {
                return Ok(queues);
            }
            page_token = page.next_page_token;
        }
    }

    /// Returns all rules that match the filter.
    pub(crate) async fn all_rules(&self, filter: &RuleFilter) -> Result<v1::ListRulesResponse, CliError> {
        let mut rules = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = v1::ListRulesRequest {
                filter: Some(filter.clone()),
                page_size: PAGE,
                page_token,
                min_revision: 0,
            };
            let page = self.answer(self.rules.clone().list_rules(request)).await?;
            rules.extend(page.rules);
            if page.next_page_token.is_empty() {
                return Ok(v1::ListRulesResponse { rules, ..page });
            }
            page_token = page.next_page_token;
        }
    }

    /// Returns all routes of the request.
    pub(crate) async fn all_routes(
        &self,
        asked: &v1::ListRoutesRequest,
    ) -> Result<v1::ListRoutesResponse, CliError> {
        let mut routes = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = v1::ListRoutesRequest { page_size: PAGE, page_token, ..asked.clone() };
            let page = self.answer(self.fleet.clone().list_routes(request)).await?;
            routes.extend(page.routes);
            if page.next_page_token.is_empty() {
                return Ok(v1::ListRoutesResponse { routes, ..page });
            }
            page_token = page.next_page_token;
        }
    }

    /// Returns the endpoints of this callee, or of all callees if it is empty.
    pub(crate) async fn all_endpoints(&self, callee: &str) -> Result<v1::ListEndpointsResponse, CliError> {
        let mut callees = Vec::new();
        let mut page_token = String::new();
        loop {
            let request =
                v1::ListEndpointsRequest { callee_service: callee.to_owned(), page_size: PAGE, page_token };
            let page = self.answer(self.fleet.clone().list_endpoints(request)).await?;
            callees.extend(page.callees);
            if page.next_page_token.is_empty() {
                return Ok(v1::ListEndpointsResponse { callees, ..page });
            }
            page_token = page.next_page_token;
        }
    }

    /// Streams statistics and their changes until the server ends the stream.
    pub(crate) async fn watch(
        &self,
        request: v1::WatchRequest,
    ) -> Result<impl Stream<Item = Result<v1::WatchResponse, CliError>> + use<>, CliError> {
        use futures_util::StreamExt as _;
        let stream = self.answer(self.fleet.clone().watch(request)).await?;
        let client = self.clone();
        Ok(stream.map(move |message| message.map_err(|status| client.failure(&status))))
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection::{PING_AFTER, PING_TIMEOUT};
    use super::super::status::FOUND_OUT_WITHIN;
    use super::*;

    #[tokio::test]
    async fn server_that_answers_nothing_is_found_out_within_five_seconds() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap().to_string();
        let begun = std::time::Instant::now();
        let client = Client::connect(&ServerArgs { server: Some(server.clone()), ..ServerArgs::default() })
            .await
            .unwrap();
        let error = client.rule(v1::Pattern::default()).await.unwrap_err();
        assert_eq!(error.code(), 69, "{error}");
        assert!(error.to_string().contains(&server), "{error}");
        assert!(PING_AFTER + PING_TIMEOUT < FOUND_OUT_WITHIN && FOUND_OUT_WITHIN < Duration::from_secs(5));
        // Pings find it out, not the limit of the call.
        assert!(begun.elapsed() < CALL_TIMEOUT, "{:?}", begun.elapsed());
    }
}
