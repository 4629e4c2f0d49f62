//! The table of rooms: the files and folders of each crate from bottom to top.

/// The rooms of one folder. A room may import those before it in the list.
pub(crate) struct Level {
    pub(crate) folder: &'static str,
    /// Off while the crate still has its old rooms. Turn it on in the commit that moves the last one.
    pub(crate) enforced: bool,
    pub(crate) most: usize,
    pub(crate) rooms: &'static [&'static str],
}

pub(crate) const LEVELS: [Level; 12] = [
    Level {
        folder: "client-sdk/core/src",
        enforced: true,
        most: 16,
        rooms: &[
            "time",
            "fault",
            "random",
            "headers",
            "outcome",
            "policy",
            "gates",
            "rules",
            "chain",
            "route",
            "call",
            "endpoints",
            "lint",
        ],
    },
    Level {
        folder: "client-sdk/endpoint/src",
        enforced: true,
        most: 16,
        rooms: &["problem", "one_task", "address", "token", "tls", "access"],
    },
    Level {
        folder: "client-sdk/src",
        enforced: false, // enforced when the crate has its rooms
        most: 16,
        rooms: &[
            "clock", "context", "headers", "metrics", "options", "routes", "balance", "control", "client",
            "server", "damper",
        ],
    },
    Level {
        folder: "client-sdk/src/client",
        enforced: false, // enforced when the folder has its rooms
        most: 16,
        rooms: &[
            "replay",
            "request",
            "outcome",
            "telemetry",
            "call",
            "attempt",
            "body",
            "slot",
            "governed",
            "future",
            "service",
        ],
    },
    Level { folder: "proto/src", enforced: true, most: 16, rooms: &["codec", "convert", "manifest"] },
    Level {
        folder: "control-plane/src",
        enforced: true,
        most: 16,
        rooms: &[
            "metrics",
            "state",
            "auth",
            "clients",
            "stats",
            "push",
            "cluster",
            "graph",
            "write",
            "doctor",
            "api",
            "telemetry",
            "config",
            "server",
        ],
    },
    Level {
        folder: "control-plane/store/src",
        enforced: true,
        most: 16,
        rooms: &["membership", "open_error", "record", "etcd", "sled", "url", "writer"],
    },
    Level {
        folder: "control-plane/net/src",
        enforced: true,
        most: 16,
        rooms: &["limits", "tls", "counters", "connection"],
    },
    Level {
        folder: "control-plane/sim/src",
        enforced: true,
        most: 16,
        rooms: &[
            "random", "spread", "scenario", "agenda", "plan", "peers", "trace", "ledger", "world", "outcome",
            "file", "what_if",
        ],
    },
    Level {
        folder: "control-plane/cli/src",
        enforced: true,
        most: 16,
        rooms: &["error", "input", "output", "remote", "config", "demo", "commands"],
    },
    Level { folder: "web-ui/src", enforced: true, most: 16, rooms: &[] },
    Level {
        folder: "xtask/src",
        enforced: true,
        most: 16,
        rooms: &[
            "command",
            "tools",
            "house",
            "bench",
            "corpus",
            "deployment",
            "docs",
            "fuzz",
            "lab",
            "page_speed",
            "picture",
            "release",
            "screenshots",
            "tests",
        ],
    },
];
