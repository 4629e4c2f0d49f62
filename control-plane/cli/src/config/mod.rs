//! Settings of `damper serve`: flag, else environment (`DAMPER_*`), else file, else default.
//!
//! The server sets the defaults, except those of the store and the log. The file is YAML; unknown keys are
//! faults. All faults are reported at once, each with its flag, variable, or file and key. Secrets come from
//! a file or the environment, never from a flag: flags are visible in the process list.

mod access;
mod limits;
mod listeners;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use damper_control_plane::{
    AmplificationOutOfRange, HistoryRetention, MaxAmplification, QueuesUrl, REPLICAS, ServerConfig, StoreUrl,
};
use damper_document::Value;
use serde::Deserialize;
use tracing_subscriber::EnvFilter;

use self::access::{Access, AccessArgs};
use self::listeners::{DoorArgs, ListenerConfig};
use crate::error::CliError;

const DEFAULT_STORE: &str = "sled:./damper-data";
const DEFAULT_LOG_LEVEL: &str = "info";
/// Log levels unless set. The HTTP/2 library warns of each odd frame of a peer, without a limit.
const QUIET: &str = "h2=error";

/// Flags of `serve`. Each is also a `DAMPER_*` variable and a key of the file.
#[derive(Args, Debug, Default)]
pub(crate) struct ServeArgs {
    /// Address that the server listens on, for gRPC, gRPC-Web and the web UI [env: DAMPER_LISTEN] [default:
    /// 127.0.0.1:7600]
    #[arg(long, value_name = "ADDR", value_parser = read::<SocketAddr>)]
    listen: Option<SocketAddr>,
    /// Store for the rules, guards and tokens: sled:PATH (a local folder) or
    /// etcd://HOST:PORT[,HOST:PORT...][/PREFIX] [env: DAMPER_STORE] [default: sled:./damper-data]
    #[arg(long, value_name = "URL")]
    store: Option<StoreUrl>,
    /// Store for the jobs of the queues: redb:PATH (a local file),
    /// postgres://USER@HOST/DATABASE[?sslmode=require] or off. A local file together with a --store in etcd
    /// requires --single-server [env: DAMPER_QUEUES] [default: jobs.redb in the folder of a local --store,
    /// else off]
    #[arg(long, value_name = "URL")]
    queues: Option<QueuesUrl>,
    /// File with the password of the database user of --queues
    /// [env: DAMPER_QUEUES_PASSWORD_FILE, or the password itself in DAMPER_QUEUES_PASSWORD]
    #[arg(long, value_name = "FILE")]
    queues_password_file: Option<PathBuf>,
    /// Confirm that no other server uses the same --store in etcd; --queues may then be a local file
    /// [env: DAMPER_SINGLE_SERVER]
    #[arg(long)]
    single_server: bool,
    /// Additional address that serves /metrics, /livez and /readyz, which --listen serves as well
    /// [env: DAMPER_METRICS_LISTEN] [default: none]
    #[arg(long, value_name = "ADDR", value_parser = read::<SocketAddr>)]
    metrics_listen: Option<SocketAddr>,
    /// Time for which the history keeps a change (minimum 24h). The newest 1,000 changes are kept even if
    /// older. Above 32 MiB the oldest changes are removed earlier, even among these 1,000
    /// [env: DAMPER_HISTORY_RETENTION] [default: 30d]
    #[arg(long, value_name = "TIME")]
    history_retention: Option<Retention>,
    /// Maximum number of attempts that one request may cause at the last service of a call chain, 1 to 1000;
    /// three hops with three attempts each make 27. A rule change that allows more requires --force
    /// [env: DAMPER_MAX_AMPLIFICATION] [default: 16]
    #[arg(long, value_name = "N")]
    max_amplification: Option<Amplification>,
    /// Format of the log on stderr [env: DAMPER_LOG] [default: text]
    #[arg(long, value_name = "FORMAT")]
    log: Option<Log>,
    /// Log level, or levels per module, such as warn,damper_store=debug [env: DAMPER_LOG_LEVEL] [default:
    /// info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// File with the password of the user in the etcd URL of --store [env: DAMPER_ETCD_PASSWORD_FILE, or the
    /// password itself in DAMPER_ETCD_PASSWORD]
    #[arg(long, value_name = "FILE")]
    etcd_password_file: Option<PathBuf>,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    doors: DoorArgs,
    /// Allow connections from other machines although authentication or TLS is off [env:
    /// DAMPER_INSECURE_ALLOW_PLAINTEXT]
    #[arg(long)]
    insecure_allow_plaintext: bool,
    /// Address at which the other replicas on the same etcd reach this one: http://HOST:PORT or
    /// https://HOST:PORT [env: DAMPER_ADVERTISE] [default: --listen, unless that is a wildcard such as
    /// 0.0.0.0]
    #[arg(long, value_name = "URL")]
    advertise: Option<Advertised>,
    /// PEM file with the CA certificates that verify other replicas [env: DAMPER_PEER_CA] [default:
    /// --tls-client-ca, else the system's]
    #[arg(long, value_name = "FILE")]
    peer_ca: Option<PathBuf>,
    /// Expected name in the certificates of other replicas [env: DAMPER_PEER_NAME] [default: the host of each
    /// address]
    #[arg(long, value_name = "NAME")]
    peer_name: Option<String>,
    /// Expected number of replicas of the control plane; `damper doctor` warns if fewer run [env:
    /// DAMPER_REPLICAS] [default: unknown]
    #[arg(long, value_name = "N", value_parser = ReplicaCount::from_str)]
    replicas: Option<ReplicaCount>,
    /// YAML file with these settings (listen, store, metrics_listen, ...) [env: DAMPER_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the settings and the files that they name, then exit (status 0 valid, 78 invalid)
    #[arg(long)]
    pub(crate) check: bool,
}

/// Log format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Log {
    /// Text
    Text,
    /// One object per line
    Json,
}

impl FromStr for Log {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as ValueEnum>::from_str(text, false).map_err(|_| "must be text or json".to_owned())
    }
}

/// Keys of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    listen: Option<Text>,
    store: Option<Text>,
    queues: Option<Text>,
    queues_password_file: Option<Text>,
    single_server: Option<Text>,
    metrics_listen: Option<Text>,
    history_retention: Option<Text>,
    max_amplification: Option<Text>,
    log: Option<Text>,
    log_level: Option<Text>,
    etcd_password_file: Option<Text>,
    auth: Option<Text>,
    bootstrap_token_file: Option<Text>,
    page_origin: Option<Vec<Text>>,
    client_identity: Option<Vec<Text>>,
    insecure_allow_plaintext: Option<Text>,
    tls_cert: Option<Text>,
    tls_key: Option<Text>,
    tls_client_ca: Option<Text>,
    tls_client_certs: Option<Text>,
    metrics_plaintext: Option<Text>,
    drain: Option<Text>,
    limits: BTreeMap<String, Text>,
    advertise: Option<Text>,
    peer_ca: Option<Text>,
    peer_name: Option<Text>,
    replicas: Option<Text>,
}

/// Plain value of the file: text, a number, true or false.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Value")]
struct Text(String);

impl TryFrom<Value> for Text {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Self, &'static str> {
        match value {
            Value::String(text) => Ok(Self(text)),
            Value::Number(_) | Value::Bool(_) => Ok(Self(value.to_string())),
            _ => Err("must be a plain value"),
        }
    }
}

/// Settings of the command line, the environment and the file, merged.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) server: ServerConfig,
    pub(crate) log: Log,
    pub(crate) log_level: EnvFilter,
}

/// Merges the settings; `env` returns the value of a variable.
pub(crate) fn settle(args: ServeArgs, env: &dyn Fn(&str) -> Option<String>) -> Result<Config, CliError> {
    let env = |name: &str| env(name).filter(|value| !value.is_empty());
    let path = args.config.or_else(|| env("DAMPER_CONFIG").map(PathBuf::from));
    let (mut file, name) = match &path {
        Some(path) => (File::read(path)?, path.display().to_string()),
        None => (File::default(), String::new()),
    };
    let mut layers = Layers { env: &env, file: &name, faults: Vec::new() };
    let access = Access::pick(&mut layers, args.access, &mut file);
    let doors = ListenerConfig::pick(&mut layers, args.doors, &mut file);
    let store = layers.pick("store", args.store, file.store);
    let queues = layers.pick("queues", args.queues, file.queues);
    let queues_password =
        layers.pick("queues_password_file", args.queues_password_file, file.queues_password_file);
    let single_server = layers.pick("single_server", args.single_server.then_some(true), file.single_server);
    let listen = layers.pick::<Address>("listen", args.listen.map(Address), file.listen);
    let metrics =
        layers.pick::<Address>("metrics_listen", args.metrics_listen.map(Address), file.metrics_listen);
    let retention =
        layers.pick::<Retention>("history_retention", args.history_retention, file.history_retention);
    let amplification =
        layers.pick::<Amplification>("max_amplification", args.max_amplification, file.max_amplification);
    let log = layers.pick("log", args.log, file.log);
    let level = layers.pick("log_level", args.log_level, file.log_level);
    let password = layers.pick("etcd_password_file", args.etcd_password_file, file.etcd_password_file);
    let insecure = layers.pick(
        "insecure_allow_plaintext",
        args.insecure_allow_plaintext.then_some(true),
        file.insecure_allow_plaintext,
    );
    let advertise = layers.pick("advertise", args.advertise, file.advertise);
    let peer_ca = layers.pick("peer_ca", args.peer_ca, file.peer_ca);
    let peer_name = layers.pick("peer_name", args.peer_name, file.peer_name);
    let replicas = layers.pick::<ReplicaCount>("replicas", args.replicas, file.replicas);
    let log_level = layers.filter(level.as_deref().unwrap_or(DEFAULT_LOG_LEVEL));
    let etcd_password = layers.password("etcd_password", password);
    let queues_password = layers.password("queues_password", queues_password);
    let store = store.or_else(|| layers.read("the default store", DEFAULT_STORE));
    let mut server = store.map(ServerConfig::new);
    if let Some(server) = &mut server {
        limits::put_all(&mut layers, file.limits, server);
    }
    let (Some(mut server), Some(log_level), []) = (server, log_level, layers.faults.as_slice()) else {
        return Err(CliError::Config(layers.faults));
    };
    access.put(&mut server);
    doors.put(&mut server);
    server.queues = queues.unwrap_or(server.queues);
    server.queues_password = queues_password;
    server.single_server = single_server.unwrap_or(server.single_server);
    server.listen = listen.map_or(server.listen, |Address(listen)| listen);
    server.metrics_listen = metrics.map(|Address(listen)| listen);
    server.history_retention = retention.map_or(server.history_retention, |Retention(kept)| kept);
    server.max_amplification = amplification.map_or(server.max_amplification, |Amplification(most)| most);
    server.allow_insecure = insecure.unwrap_or(server.allow_insecure);
    server.etcd_password = etcd_password;
    server.advertise = advertise.map(|Advertised(url)| url);
    server.peer_ca = peer_ca;
    server.peer_name = peer_name;
    server.replicas = replicas.map(|ReplicaCount(count)| count);
    Ok(Config { server, log: log.unwrap_or(Log::Text), log_level })
}

/// Expected number of replicas.
#[derive(Clone, Copy, Debug)]
struct ReplicaCount(u32);

impl FromStr for ReplicaCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let count = text.parse().ok().filter(|count| REPLICAS.contains(count));
        count.map(Self).ok_or_else(|| format!("must be between {} and {}", REPLICAS.start(), REPLICAS.end()))
    }
}

/// Address of a replica.
#[derive(Clone, Debug)]
struct Advertised(String);

impl FromStr for Advertised {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        let is_good =
            parts.and_then(|rest| rest.trim_end_matches('/').rsplit_once(':')).is_some_and(|(host, port)| {
                !host.is_empty() && !host.contains(['/', '@', ' ']) && port.parse::<u16>().is_ok()
            });
        if !is_good {
            return Err("must be http://HOST:PORT or https://HOST:PORT".to_owned());
        }
        Ok(Self(text.trim_end_matches('/').to_owned()))
    }
}

impl File {
    fn read(path: &Path) -> Result<Self, CliError> {
        let bytes = std::fs::read(path)
            .map_err(|error| CliError::Config(vec![format!("{}: {error}", path.display())]))?;
        let read = damper_document::utf8(&bytes).and_then(|text| {
            damper_document::parse_one(text, |value, faults| damper_document::read(value, Ok, faults))
        });
        let shown = |problem: damper_document::Problem| problem.in_file(path.display());
        read.map_err(|error| CliError::Config(error.problems.into_iter().map(shown).collect()))
    }
}

/// Layers below the flags, and their faults.
struct Layers<'a> {
    env: &'a dyn Fn(&str) -> Option<String>,
    file: &'a str,
    faults: Vec<String>,
}

impl Layers<'_> {
    /// Returns the setting from the first layer that sets it.
    fn pick<T: FromStr<Err: Display>>(
        &mut self,
        name: &str,
        flag: Option<T>,
        in_file: Option<Text>,
    ) -> Option<T> {
        if flag.is_some() {
            return flag;
        }
        let variable = format!("DAMPER_{}", name.to_uppercase());
        if let Some(text) = (self.env)(&variable) {
            return self.read(&variable, &text);
        }
        self.read(&format!("{}: {name}", self.file), &in_file?.0)
    }

    fn read<T: FromStr<Err: Display>>(&mut self, place: &str, text: &str) -> Option<T> {
        text.parse().map_err(|error| self.faults.push(format!("{place}: {text:?}: {error}"))).ok()
    }

    fn filter(&mut self, level: &str) -> Option<EnvFilter> {
        let filter = EnvFilter::try_new(format!("{QUIET},{level}"));
        filter.map_err(|error| self.faults.push(format!("log_level: {level:?}: {error}"))).ok()
    }

    fn password(&mut self, name: &str, file: Option<PathBuf>) -> Option<String> {
        let Some(file) = file else {
            return (self.env)(&format!("DAMPER_{}", name.to_uppercase()));
        };
        let read = std::fs::read_to_string(&file);
        read.map(|text| text.trim_end_matches(['\r', '\n']).to_owned())
            .map_err(|error| self.faults.push(format!("{name}_file: {}: {error}", file.display())))
            .ok()
    }
}

/// A socket address.
#[derive(Debug)]
struct Address(SocketAddr);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        read(text).map(Self)
    }
}

/// A retention as text.
#[derive(Clone, Copy, Debug)]
struct Retention(HistoryRetention);

impl FromStr for Retention {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let length = humantime::parse_duration(text)
            .map_err(|_| "must be a duration such as 30d or 36h".to_owned())?;
        HistoryRetention::try_from(length).map(Self).map_err(|error| error.to_string())
    }
}

/// Limit of the amplification.
#[derive(Clone, Copy, Debug)]
struct Amplification(MaxAmplification);

impl FromStr for Amplification {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sends: u32 = text.parse().map_err(|_| AmplificationOutOfRange.to_string())?;
        MaxAmplification::try_from(sends).map(Self).map_err(|error| error.to_string())
    }
}

fn read<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "must be an IP address with a port, such as 127.0.0.1:7600".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle_with(args: ServeArgs, env: &[(&str, &str)], file: Option<&str>) -> Result<Config, CliError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("damper.yaml");
        let config = file.map(|text| {
            std::fs::write(&path, text).unwrap();
            path.clone()
        });
        let env =
            |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        settle(ServeArgs { config, ..args }, &env)
    }

    fn listening_on(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn flag_comes_before_environment_before_file_before_default() {
        let file = Some("listen: 127.0.0.1:3\n");
        let env = [("DAMPER_LISTEN", "127.0.0.1:2")];
        let flag = || ServeArgs { listen: Some(listening_on("127.0.0.1:1")), ..ServeArgs::default() };
        let listen = |config: Result<Config, CliError>| config.unwrap().server.listen.to_string();
        assert_eq!(listen(settle_with(flag(), &env, file)), "127.0.0.1:1");
        assert_eq!(listen(settle_with(ServeArgs::default(), &env, file)), "127.0.0.1:2");
        assert_eq!(listen(settle_with(ServeArgs::default(), &[("DAMPER_LISTEN", "")], file)), "127.0.0.1:3");
        assert_eq!(listen(settle_with(ServeArgs::default(), &[], None)), "127.0.0.1:7600");
    }

    #[test]
    fn every_setting_can_stand_in_the_file() {
        let file = "listen: 127.0.0.1:1\nstore: sled:/tmp/x\nmetrics_listen: '[::1]:2'\nlog: json\n\
                    log_level: damper=debug\ninsecure_allow_plaintext: true\nhistory_retention: 7d\nmax_amplification: 40\nreplicas: 2\n";
        let config = settle_with(ServeArgs::default(), &[], Some(file)).unwrap();
        assert_eq!(config.server.store.to_string(), "sled:/tmp/x");
        assert_eq!(config.server.metrics_listen, Some(listening_on("[::1]:2")));
        assert_eq!(config.log, Log::Json);
        assert_eq!(config.log_level.to_string(), "damper=debug,h2=error");
        assert!(config.server.allow_insecure);
        assert_eq!(config.server.history_retention.length().as_secs(), 7 * 24 * 3600);
        assert_eq!(config.server.max_amplification.sends(), 40);
        assert_eq!(config.server.replicas, Some(2));
    }

    #[test]
    fn unknown_key_is_refused_by_its_name() {
        let error = settle_with(ServeArgs::default(), &[], Some("listn: 127.0.0.1:1\n")).unwrap_err();
        assert_eq!(error.code(), 78);
        assert!(error.to_string().contains("damper.yaml") && error.to_string().contains("listn"), "{error}");
    }

    #[test]
    fn empty_file_sets_nothing() {
        assert!(settle_with(ServeArgs::default(), &[], Some("# nothing\n\n")).is_ok());
    }

    #[test]
    fn all_faults_are_reported_at_once_with_places() {
        let env = [
            ("DAMPER_LISTEN", "here"),
            ("DAMPER_LOG", "xml"),
            ("DAMPER_HISTORY_RETENTION", "23h"),
            ("DAMPER_MAX_AMPLIFICATION", "1001"),
            ("DAMPER_REPLICAS", "0"),
        ];
        let file = Some("store: postgres://x\ninsecure_allow_plaintext: true\n");
        let error = settle_with(ServeArgs::default(), &env, file).unwrap_err();
        let text = error.to_string();
        assert_eq!(text.lines().count(), 6, "{text}");
        for part in [
            "DAMPER_LISTEN: \"here\"",
            "DAMPER_LOG: \"xml\"",
            "DAMPER_HISTORY_RETENTION: \"23h\": the history must be kept for at least 24 h",
            "DAMPER_MAX_AMPLIFICATION: \"1001\": must be between 1 and 1000",
            "DAMPER_REPLICAS: \"0\": must be between 1 and 65",
            "damper.yaml: store: \"postgres://x\"",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(error.code(), 78);
    }

    #[test]
    fn password_comes_from_a_file_or_the_environment() {
        let env = [("DAMPER_ETCD_PASSWORD", "secret")];
        let config = settle_with(ServeArgs::default(), &env, None).unwrap();
        assert_eq!(config.server.etcd_password.as_deref(), Some("secret"));
        let missing = [("DAMPER_ETCD_PASSWORD_FILE", "/no/such/file")];
        assert_eq!(settle_with(ServeArgs::default(), &missing, None).unwrap_err().code(), 78);
    }

    #[test]
    fn peers_cannot_fill_the_log_through_the_http2_library() {
        let filter = |level: Option<&str>| {
            let args = ServeArgs { log_level: level.map(str::to_owned), ..ServeArgs::default() };
            settle_with(args, &[], None).unwrap().log_level.to_string()
        };
        assert!(filter(None).contains("h2=error"));
        assert!(filter(Some("debug")).contains("h2=error"));
        assert!(filter(Some("info,h2=debug")).contains("h2=debug"));
    }
}
