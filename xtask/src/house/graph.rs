//! The rooms of a folder and the arrows between them, read from the paths in its code.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::files::{File, Use};
use super::source::{Kind, Language, Token};

#[derive(Default)]
pub(crate) struct Graph {
    pub(crate) rooms: BTreeSet<String>,
    /// Where each arrow is drawn: path and line of each import.
    pub(crate) arrows: BTreeMap<(String, String), Vec<(String, usize)>>,
}

/// An imported path, the name that it gets, and its line.
struct Import {
    path: Vec<String>,
    name: String,
    line: usize,
}

impl Graph {
    pub(crate) fn new(folder: &str, files: &[File]) -> Self {
        let inside: Vec<(&File, Option<&str>)> =
            sources(folder, files).map(|file| (file, room(folder, file))).collect();
        let rooms: BTreeSet<String> = inside.iter().filter_map(|(_, room)| room.map(str::to_owned)).collect();
        let prefix: Vec<&str> =
            folder.rsplit_once("/src/").map_or(vec![], |(_, inside)| inside.split('/').collect());
        let mut exports = HashMap::new();
        for (file, _) in inside.iter().filter(|(_, room)| room.is_none()) {
            for import in imports(file, &rooms) {
                if let Some(room) = below(&import.path, &prefix).filter(|room| rooms.contains(*room)) {
                    exports.insert(import.name.clone(), room.to_owned());
                }
            }
        }
        let mut arrows = BTreeMap::<_, Vec<_>>::new();
        for (file, from) in inside.iter().filter_map(|(file, room)| Some((file, (*room)?))) {
            for import in imports(file, &BTreeSet::new()) {
                let Some(first) = below(&import.path, &prefix) else { continue };
                let Some(to) = rooms.get(first).or_else(|| exports.get(first)) else { continue };
                if to != from {
                    let place = (file.path.clone(), import.line);
                    arrows.entry((from.to_owned(), to.clone())).or_default().push(place);
                }
            }
        }
        Self { rooms, arrows }
    }

    /// Orders the rooms from bottom to top so that few arrows run back up (Eades, Lin and Smyth, 1993).
    pub(crate) fn order(&self) -> Vec<&str> {
        let mut left: BTreeSet<&str> = self.rooms.iter().map(String::as_str).collect();
        let (mut bottom, mut top) = (Vec::new(), Vec::new());
        while !left.is_empty() {
            let count = |room: &str, out: bool| {
                let ends = self.arrows.keys().map(|(from, to)| if out { (from, to) } else { (to, from) });
                ends.filter(|(one, other)| *one == room && left.contains(other.as_str())).count()
            };
            let sink = left.iter().copied().find(|room| count(room, true) == 0);
            let source = left.iter().copied().find(|room| count(room, false) == 0);
            let upper = |room: &&str| count(room, true).cast_signed() - count(room, false).cast_signed();
            let Some(next) = sink.or(source).or_else(|| left.iter().copied().max_by_key(upper)) else {
                break;
            };
            if sink.is_some() {
                bottom.push(next)
            } else {
                top.push(next)
            }
            left.remove(next);
        }
        bottom.extend(top.into_iter().rev());
        bottom
    }

    /// Returns the number of floors and of arrows that run back up.
    pub(crate) fn floors(&self) -> (usize, usize) {
        let order = self.order();
        let place: HashMap<&str, usize> = order.iter().enumerate().map(|(at, room)| (*room, at)).collect();
        let mut floor = vec![1; order.len()];
        for (at, room) in order.iter().enumerate() {
            let below = self.arrows.keys().filter(|(from, _)| from == room).map(|(_, to)| place[to.as_str()]);
            floor[at] = below.filter(|to| *to < at).map(|to| floor[to] + 1).max().unwrap_or(1);
        }
        let up = self.arrows.keys().filter(|(from, to)| place[to.as_str()] > place[from.as_str()]).count();
        (floor.into_iter().max().unwrap_or(0), up)
    }
}

/// The Rust files of a folder that are not tests or programs of their own.
pub(crate) fn sources<'f>(folder: &str, files: &'f [File]) -> impl Iterator<Item = &'f File> {
    let (folder, face) = (format!("{folder}/"), format!("{folder}.rs"));
    files.iter().filter(move |file| {
        let inside = file.path.strip_prefix(&folder).is_some_and(|rest| !rest.starts_with("bin/"));
        file.language == Language::Rust && file.use_ != Use::Test && (inside || file.path == face)
    })
}

/// The room of a file; `None` for the face of the folder.
fn room<'f>(folder: &str, file: &'f File) -> Option<&'f str> {
    let first = file.path.strip_prefix(folder)?.strip_prefix('/')?.split('/').next()?;
    let room = first.trim_end_matches(".rs");
    (!["lib.rs", "main.rs", "mod.rs"].contains(&first)).then_some(room)
}

fn below<'p>(path: &'p [String], prefix: &[&str]) -> Option<&'p str> {
    let starts = path.len() > prefix.len() && path.iter().zip(prefix).all(|(one, other)| one == other);
    starts.then(|| path[prefix.len()].as_str())
}

/// Returns all paths of a file that begin with `crate`, `self` or `super`, from the root of the crate.
/// `rooms` are names with which a `use` may begin too.
fn imports(file: &File, rooms: &BTreeSet<String>) -> Vec<Import> {
    let code = file.code();
    let own = file.module();
    let mut inline: Vec<(&str, i32)> = Vec::new();
    let mut depth = 0;
    let mut found = Vec::new();
    for at in 0..code.len() {
        depth += i32::from(code[at].is("{")) - i32::from(code[at].is("}"));
        inline.retain(|(_, opened)| depth >= *opened || !code[at].is("}"));
        if code[at].is("mod") && code.get(at + 2).is_some_and(|mark| mark.is("{")) {
            inline.push((code[at + 1].text, depth + 1));
        }
        let inside = at > 1 && code[at - 1].is(":") && code[at - 2].is(":");
        let of_room = at > 0 && code[at - 1].is("use") && rooms.contains(code[at].text);
        let starts = ["crate", "self", "super"].contains(&code[at].text) && followed(&code, at);
        if code[at].kind != Kind::Name || inside || !(of_room || starts) {
            continue;
        }
        let mut leaves = Vec::new();
        read(&code, at, &[], &mut leaves);
        let module: Vec<&str> = own.iter().copied().chain(inline.iter().map(|(name, _)| *name)).collect();
        found.extend(leaves.into_iter().map(|(path, name, line)| Import {
            path: absolute(&module, &path),
            name,
            line,
        }));
    }
    found
}

fn followed(code: &[&Token], at: usize) -> bool {
    code.get(at + 1).is_some_and(|mark| mark.is(":")) && code.get(at + 2).is_some_and(|mark| mark.is(":"))
}

fn absolute(module: &[&str], path: &[&str]) -> Vec<String> {
    let supers = path.iter().take_while(|part| **part == "super").count();
    let (base, rest) = match path.first() {
        Some(&"crate") => (0, &path[1..]),
        Some(&"self") => (module.len(), &path[1..]),
        Some(&"super") => (module.len().saturating_sub(supers), &path[supers..]),
        _ => (module.len(), path),
    };
    module[..base].iter().chain(rest).map(|part| (*part).to_owned()).collect()
}

type Leaf = (Vec<&'static str>, String, usize);

/// Reads the path or the group of paths at `at`, adds its leaves, and returns the place after it.
fn read(code: &[&Token], at: usize, before: &[&'static str], leaves: &mut Vec<Leaf>) -> usize {
    let Some(token) = code.get(at) else { return at + 1 };
    if token.is("{") {
        let mut at = at + 1;
        while code.get(at).is_some_and(|token| !token.is("}")) {
            at = if code[at].is(",") { at + 1 } else { read(code, at, before, leaves) };
        }
        return at + 1;
    }
    let path: Vec<_> = before.iter().copied().chain([token.text]).collect();
    let goes_on = |next: &&&Token| next.kind == Kind::Name || next.is("{") || next.is("*");
    if token.kind == Kind::Name && followed(code, at) && code.get(at + 3).as_ref().is_some_and(goes_on) {
        return read(code, at + 3, &path, leaves);
    }
    let alias = code.get(at + 1).filter(|next| next.is("as")).and_then(|_| code.get(at + 2));
    leaves.push((path, alias.unwrap_or(token).text.to_owned(), token.line));
    at + if alias.is_some() { 3 } else { 1 }
}
