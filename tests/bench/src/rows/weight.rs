//! What the SDK weighs in a service: the same small service is built with it and without (`tests/weight`).
//!
//! Three pairs: neither speaks TLS; both do, where rustls is linked anyway; and a service without that gets the SDK as
//! it comes, with TLS. Crates are those that cargo links for this machine, the size is that of the stripped program,
//! memory and tasks are what the running service holds after it has called each of its routes once. The service without
//! the SDK calls them too. For each connection hyper makes tasks: the SDK's own are counted where it has none.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use damper_tests::spread::Spread;

use super::Size;
use crate::calls;
use crate::figure::{Figure, Row, Target};
use crate::fleet::Server;
use crate::patience::PATIENCE;
use crate::process::{output, tethered};

const PACKAGE: &str = "damper-weight";
const ROUTES: usize = 200;
const BUILDING: Duration = Duration::from_secs(20 * 60);

/// A service without the SDK and with it, by the cargo features of each.
const PAIRS: [(&str, &str, &str); 3] = [
    ("no TLS", "", "sdk"),
    ("TLS in both", "tls", "tls,sdk,damper-sdk/tls"),
    ("TLS by the SDK alone", "", "sdk,damper-sdk/tls"),
];

pub(super) async fn measure(size: Size) -> Result<(usize, Row)> {
    let rounds = size.pick(1, 9, 25);
    let folder = tempfile::tempdir()?;
    let server = calls::control_plane().await?;
    let mut row = Row::new("weight", "Weight of the SDK in a service").note(
        "The SDK's own tasks are counted while no control plane is reachable; its stream adds one connection, for \
         which hyper starts two tasks. Part of the memory is the program itself, read from its file: processes share it. \
         [What weighs what](weight.md).",
    );
    for (pair, without, with) in PAIRS {
        let base = Variant::build(without, folder.path()).await?;
        let own = Variant::build(with, folder.path()).await?;
        let (mut base_holds, mut own_holds) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            base_holds.push(base.run(&server).await?);
            own_holds.push(own.run(&server).await?);
        }
        row = row.note(format!("Without, {pair}: {} crates, {:.2} MiB.", base.crates, base.mebibytes));
        row = row.with_all(sizes(pair, &base, &own)).with_all(held(pair, &base_holds, &own_holds));
    }
    Ok((rounds, row))
}

fn sizes(pair: &str, base: &Variant, own: &Variant) -> [Figure; 2] {
    let crates = Spread::exactly((own.crates - base.crates) as f64);
    let mebibytes = Spread::exactly(own.mebibytes - base.mebibytes);
    [
        Figure::new(format!("{pair}: crates more"), "", crates).aim(Target::AtMost(60.0)),
        Figure::new(format!("{pair}: MiB more, stripped"), "MiB", mebibytes).aim(Target::AtMost(1.5)),
    ]
}

fn held(pair: &str, base: &[Held], own: &[Held]) -> [Figure; 4] {
    let more = |of: fn(&Held) -> f64| Spread::of(own.iter().zip(base).map(|(own, base)| of(own) - of(base)));
    let of_the_sdk = Spread::of(own.iter().map(|own| own.of_the_sdk));
    let memory = format!("{pair}: memory more at {ROUTES} routes");
    [
        Figure::new(format!("{pair}: tasks of the SDK's own"), "", of_the_sdk).aim(Target::AtMost(1.0)),
        Figure::new(
            format!("{pair}: tasks more, with hyper's for its connection"),
            "",
            more(|held| held.tasks),
        ),
        Figure::new(memory.clone(), "MiB", more(|held| held.mebibytes)).aim(Target::AtMost(2.0)),
        Figure::new(format!("{memory}, its program apart"), "MiB", more(|held| held.anonymous)),
    ]
}

/// A built service.
struct Variant {
    program: PathBuf,
    crates: usize,
    mebibytes: f64,
}

/// What a service holds at the end.
struct Held {
    mebibytes: f64,
    /// Those that are not mapped from a file.
    anonymous: f64,
    tasks: f64,
    /// Those of the SDK without a connection.
    of_the_sdk: f64,
}

impl Variant {
    async fn build(features: &str, folder: &Path) -> Result<Self> {
        let features = ["--features", features];
        let build = ["build", "--release", "--quiet", "--message-format=json", "--package", PACKAGE];
        let messages = cargo(&build, &features).await?;
        let mut messages =
            messages.lines().rev().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let built = messages.find_map(|message| Some(message.get("executable")?.as_str()?.to_owned()));
        let program = folder.join(features.concat().replace(['/', ','], "_"));
        let mut strip = tethered("strip");
        strip.arg("-o").arg(&program).arg(built.context("cargo builds a program")?);
        output("strip (of binutils)", strip, PATIENCE).await?;
        let mebibytes = std::fs::metadata(&program)?.len() as f64 / 1024.0 / 1024.0;
        let tree = ["tree", "--edges=normal", "--prefix=none", "--package", PACKAGE];
        let tree = cargo(&tree, &features).await?;
        let crates = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect::<BTreeSet<_>>().len();
        Ok(Self { program, crates, mebibytes })
    }

    async fn run(&self, server: &Server) -> Result<Held> {
        let mut service = tethered(&self.program);
        service.args([server.url(), &ROUTES.to_string()]);
        let said = output("the service", service, PATIENCE).await?;
        let numbers: Vec<f64> = said.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let &[kibibytes, anonymous, tasks, of_the_sdk] = numbers.as_slice() else {
            bail!("the service said {said:?}");
        };
        Ok(Held { mebibytes: kibibytes / 1024.0, anonymous: anonymous / 1024.0, tasks, of_the_sdk })
    }
}

async fn cargo(arguments: &[&str], features: &[&str]) -> Result<String> {
    let mut cargo = tethered(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments).args(features);
    output(&format!("cargo {}", arguments.join(" ")), cargo, BUILDING).await
}
