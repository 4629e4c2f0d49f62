//! What to write, and the names that rules do not have.

/// Language of a gRPC client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Language {
    /// Go, which has no hedging, and others without.
    #[default]
    Other,
    /// Java, Node and .NET, which have hedging.
    Hedging,
}

/// What to write, and the names that rules do not have.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Callees; all that rules name if empty.
    pub callees: Vec<String>,
    /// The one caller whose rules are written.
    pub caller: Option<String>,
    /// Its cluster; `default` if not given.
    pub cluster: Option<String>,
    /// Label of pods that has the caller's name, for Istio.
    pub caller_label: Option<String>,
    /// Label of pods that has the caller's cluster, for Istio.
    pub cluster_label: Option<String>,
    /// Writes the filter that keeps the retry flag, for Istio and Envoy.
    pub chain_flag: bool,
    /// Language of the caller, for gRPC.
    pub language: Language,
    /// Port of the callee's Service, for Linkerd and the Gateway API.
    pub port: Option<u16>,
}

impl Options {
    /// Returns the cluster of the caller.
    pub(crate) fn cluster(&self) -> &str {
        self.cluster.as_deref().unwrap_or("default")
    }
}
