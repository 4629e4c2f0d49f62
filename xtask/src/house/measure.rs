//! `cargo xtask measure`: the size and shape of the code base as Markdown tables.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use super::files::{self, File, Use};
use super::graph::{Graph, sources};
use super::prose::{self, What};
use super::rooms::LEVELS;
use super::source::Kind;
use crate::command::{Command, root};
use crate::tools;

const SERVER: &str = "control-plane/src";

/// Prints the tables; `--write FILE` writes them, `--times` builds too.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let (mut times_too, mut file) = (false, None);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--times" => times_too = true,
            "--write" => file = Some(args.next().context("--write needs a file")?),
            _ => bail!("usage: cargo xtask measure [--times] [--write FILE]"),
        }
    }
    let files = files::read()?;
    let mut text = format!("{}\n{}\n{}", lines(&files)?, rooms(&files), single(&files)?);
    if times_too {
        text += &times(&files)?;
    }
    print!("{text}");
    file.map_or(Ok(()), |file| fs::write(root().join(file), &text).with_context(|| file.clone()))
}

/// Returns product lines by language and lines of tests and tools, per crate.
fn lines(files: &[File]) -> Result<String> {
    let mut crates: Vec<String> = files::list(true)?;
    crates.retain(|path| path.ends_with("/Cargo.toml"));
    let folders: Vec<&str> = crates.iter().map(|path| path.trim_end_matches("Cargo.toml")).collect();
    let mut rows = BTreeMap::<&str, [usize; 5]>::new();
    let mut sum = [0; 5];
    for file in files {
        let place = match file.path.rsplit_once('.').map_or("", |(_, ending)| ending) {
            "rs" => 0,
            "ts" => 1,
            "svelte" => 2,
            "proto" => 3,
            _ => continue,
        };
        let own =
            folders.iter().filter(|folder| file.path.starts_with(**folder)).max_by_key(|folder| folder.len());
        let row = rows.entry(own.map_or("other", |folder| folder.trim_end_matches('/'))).or_default();
        let product = file.product_lines();
        for counts in [row, &mut sum] {
            counts[place] += product;
            counts[4] += file.lines() - product;
        }
    }
    let mut text =
        "| lines | Rust | TypeScript | Svelte | proto | tests and tools |\n|---|--:|--:|--:|--:|--:|\n"
            .to_owned();
    for (name, row) in rows.into_iter().chain([("sum", sum)]) {
        let cells: Vec<String> = row.iter().map(usize::to_string).collect();
        writeln!(text, "| {name} | {} |", cells.join(" | "))?;
    }
    Ok(text)
}

fn rooms(files: &[File]) -> String {
    let mut text =
        "| | rooms | floors | arrows | running back up | loose files |\n|---|--:|--:|--:|--:|--:|\n"
            .to_owned();
    for level in &LEVELS {
        let graph = Graph::new(level.folder, files);
        let (floors, up) = graph.floors();
        let loose = sources(level.folder, files).filter(|file| {
            let name = file.path.strip_prefix(level.folder).map(|name| name.trim_start_matches('/'));
            name.is_some_and(|name| {
                !name.contains('/') && !["", "lib.rs", "main.rs", "mod.rs", ".rs"].contains(&name)
            })
        });
        let (rooms, arrows, loose) = (graph.rooms.len(), graph.arrows.len(), loose.count());
        text += &format!("| `{}` | {rooms} | {floors} | {arrows} | {up} | {loose} |\n", level.folder);
    }
    text
}

/// Returns the numbers that are not per crate.
fn single(files: &[File]) -> Result<String> {
    let mut text = "| | |\n|---|--:|\n".to_owned();
    writeln!(text, "| tracked files | {} |", files::list(false)?.len())?;
    let server = Graph::new(SERVER, files);
    let to_shared = server.arrows.iter().filter(|((_, to), _)| to == "shared").flat_map(|(_, places)| places);
    let shared = to_shared.map(|(path, _)| path).collect::<BTreeSet<_>>().len();
    writeln!(text, "| files of the server that import `Shared` | {shared} |")?;
    for level in LEVELS.iter().filter(|level| level.folder.ends_with("src")) {
        let duplicates = duplicates(level.folder, files);
        if duplicates > 0 {
            writeln!(text, "| type names that `{}` has more than once | {duplicates} |", level.folder)?;
        }
    }
    let (hits, _) = prose::hits(files)?;
    let count = |what| hits.iter().filter(|hit| hit.what == what).count();
    let rows = [
        ("banned words in text that users read", What::Text),
        ("banned words in comments of the product", What::Comments),
        ("banned words in names of the product", What::Names),
        ("banned words in tests and tools", What::Tests),
        ("comment lines over 110 columns", What::Wide),
        ("test names over 60 characters", What::TestNames),
    ];
    for (label, what) in rows {
        writeln!(text, "| {label} | {} |", count(what))?;
    }
    if let Ok(binary) = fs::metadata(tools::target().join("release/damper")) {
        writeln!(text, "| release binary, MB | {:.1} |", binary.len() as f64 / 1e6)?;
    }
    Ok(text)
}

/// Returns how many names of types a crate declares more than once.
fn duplicates(folder: &str, files: &[File]) -> usize {
    let (mut seen, mut twice) = (BTreeSet::new(), BTreeSet::new());
    for file in sources(folder, files) {
        let code = file.code();
        let mut depth = 0;
        for pair in code.windows(2) {
            depth += i32::from(pair[0].is("{")) - i32::from(pair[0].is("}"));
            let alias = pair[0].is("type") && depth == 0;
            let declares = alias || ["struct", "enum", "trait", "union"].iter().any(|word| pair[0].is(word));
            if declares && pair[1].kind == Kind::Name && !seen.insert(pair[1].text) {
                twice.insert(pair[1].text);
            }
        }
    }
    twice.len()
}

/// Builds after a line is added to a file of the API, each build once before.
fn times(files: &[File]) -> Result<String> {
    let places = ["control-plane/src/api/resources/list.rs", "control-plane/src/api/rules/list.rs"];
    let place = places
        .into_iter()
        .find(|place| files.iter().any(|file| file.path == *place && file.use_ != Use::Test));
    let place = root().join(place.context("no file of the API to touch")?);
    let mut text = String::new();
    for args in
        ["check -p damper-control-plane", "build -p damper-cli", "test -p damper-control-plane --no-run"]
    {
        let run = || Command::cargo()?.args(args.split(' ')).run();
        run()?;
        let before = fs::read_to_string(&place)?;
        fs::write(&place, format!("{before}// A line.\n"))?;
        let started = Instant::now();
        let done = run();
        let seconds = started.elapsed().as_secs_f64();
        fs::write(&place, before)?;
        done?;
        writeln!(text, "| seconds for `cargo {args}` after a line in the API | {seconds:.1} |")?;
    }
    Ok(text)
}
