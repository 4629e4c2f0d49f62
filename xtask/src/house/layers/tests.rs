use super::*;

const LEVEL: Level = Level { folder: "a/src", enforced: true, most: 3, rooms: &["low", "mid", "high"] };

fn found(files: &[(&str, &'static str)]) -> Vec<String> {
    let files: Vec<File> =
        files.iter().filter_map(|(path, text)| File::new(format!("a/src/{path}"), text)).collect();
    check(&LEVEL, &files).into_iter().map(|fault| fault.place).collect()
}

const LIB: (&str, &str) = ("lib.rs", "mod low; mod mid; mod high; pub use high::Roof;");

#[test]
fn imports_of_lower_rooms_are_fine() {
    let high = "use crate::{low::Low, mid};\nfn a() { super::low::b(); }";
    assert!(found(&[LIB, ("low.rs", ""), ("mid/mod.rs", ""), ("high.rs", high)]).is_empty());
}

#[test]
fn import_of_a_room_above_is_found_in_each_spelling() {
    let rule = "`low` imports `high`, a room above it";
    for text in [
        "use crate::high::Roof;",
        "use crate::Roof;",
        "use crate::{mid::{A, B}, high as h};",
        "fn a() { let b = super::high::new(); }",
        "fn a<'l>(b: &'l str) { let c = ('\"', r#\"\"\"#); crate::high::new() }",
        "mod inner { use super::super::high::Roof; }",
    ] {
        let places = found(&[LIB, ("low.rs", text), ("high.rs", "")]);
        assert!(places.contains(&format!("a/src/low.rs:1: {rule}")), "{text}: {places:?}");
    }
}

#[test]
fn tests_and_comments_and_strings_do_not_count() {
    let text =
        "// crate::high::A\nconst A: &str = \"crate::high::A\";\n#[cfg(test)]\nmod t { use crate::high; }";
    assert!(
        found(&[LIB, ("low.rs", text), ("low/tests.rs", "use crate::high;"), ("high.rs", "")]).is_empty()
    );
}

#[test]
fn room_outside_the_table_and_one_too_many_are_found() {
    let places = found(&[LIB, ("low.rs", ""), ("mid.rs", ""), ("high.rs", ""), ("attic/mod.rs", "")]);
    assert_eq!(places, ["a/src/attic:1: not in the table of rooms", "a/src:1: 4 rooms, at most 3"]);
}

#[test]
fn long_file_is_found_without_its_tests() {
    let long: &'static str = "fn a() {}\n".repeat(401).leak();
    let tested: &'static str =
        format!("{}#[cfg(test)]\nmod tests {{\n}}\n", "fn a() {}\n".repeat(400)).leak();
    let places = found(&[("low.rs", long), ("mid.rs", tested)]);
    assert_eq!(places, ["a/src/low.rs:1: over 400 lines without its tests"]);
}

#[test]
fn dependency_of_the_core_is_found_in_each_table() {
    let manifest = "[package]\nname = \"core\"\n[dependencies]\ntokio = \"1\"\n\
        [dev-dependencies]\nproptest = \"1\"\n[dev-dependencies.rand]\nversion = \"1\"\n\
        [target.'cfg(unix)'.dependencies]\nlibc = \"1\"\n[dependencies.serde]\nversion = \"1\"\n";
    let places: Vec<String> = dependencies("m", manifest).into_iter().map(|fault| fault.place).collect();
    let rule = |line: usize, name: &str| format!("m:{line}: dependency `{name}`, none is allowed");
    assert_eq!(places, [rule(4, "tokio"), rule(10, "libc"), rule(11, "serde")]);
}

#[test]
fn exception_holds_until_it_is_not_needed() {
    let fault = || Fault { key: "f: rule".to_owned(), place: "f:3: rule".to_owned() };
    assert_eq!(report(&[fault()], ""), ["f:3: rule"]);
    assert!(report(&[fault()], "# why\nf: rule\n").is_empty());
    assert_eq!(report(&[], "f: rule").len(), 1);
}
