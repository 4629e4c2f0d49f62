use std::collections::BTreeMap;

use super::*;

/// The words and kinds found in a file with `plonk` and `big plonk` banned.
fn found(path: &str, text: &'static str) -> Vec<(usize, What, String)> {
    let wire = File::new("proto/wire.proto".to_owned(), "message A { string plonk_id = 1; }").unwrap();
    let bans = Bans::parse("plonk = thing\nbig plonk = large\n=> = to\n").unwrap();
    let bans = bans.with_stable("old_plonk: a metric\n").unwrap();
    let Some(file) = File::new(path.to_owned(), text) else { return Vec::new() };
    bans.hits(&[wire, file]).into_iter().map(|hit| (hit.line, hit.what, hit.found)).collect()
}

fn one(line: usize, what: What) -> Vec<(usize, What, String)> {
    vec![(line, what, "plonk".to_owned())]
}

#[test]
fn words_are_found_by_kind() {
    assert_eq!(found("a/src/lib.rs", "\n// A plonk.\n"), one(2, What::Comments));
    assert_eq!(found("a/src/lib.rs", "fn a() {\n b(\"Plonk\") }"), one(2, What::Text));
    assert_eq!(found("a/src/lib.rs", "const A: &str = r#\"\"\nplonk\"#;"), one(2, What::Text));
    assert_eq!(found("a/src/lib.rs", "fn a_plonk() {}"), one(1, What::Names));
    assert_eq!(found("a/src/plonk.rs", ""), one(1, What::Names));
    assert_eq!(found("a/src/lib.rs", "#[cfg(test)]\nmod tests {\n // plonk\n}"), one(3, What::Tests));
    assert_eq!(found("tests/a.rs", "// plonk"), one(1, What::Tests));
    assert_eq!(found("p.proto", "// plonk\nmessage B {}"), one(1, What::Text));
    assert_eq!(found("a.md", "# A\n```\nplonk\n```\nplonk `plonk`\n"), one(5, What::Text));
    assert_eq!(found("a.ts", "const a = `${b({ c: '}' })} plonk`;"), one(1, What::Text));
    assert_eq!(
        found("a.svelte", "<script>\n// plonk\n</script>\n<b class=\"plonk\">{a}</b>"),
        one(2, What::Comments)
    );
    assert_eq!(found("a.svelte", "<b title=\"a {b} c\">it's {c}\nplonk</b>"), one(2, What::Text));
}

#[test]
fn settings_styles_and_go_are_read() {
    assert_eq!(found("a.yaml", "# b\na: plonk # c\n"), one(2, What::Text));
    assert_eq!(found("a.toml", "a = 'b#c' # plonk\n"), one(1, What::Comments));
    assert_eq!(found(".ci/run", "# plonk\nplonkrun\n"), one(1, What::Comments));
    assert_eq!(found("a.json", "{\n\"a\": \"it's // plonk\" }"), one(2, What::Text));
    assert_eq!(found("a.css", "/* plonk */ .plonk { content: 'b'; }"), one(1, What::Comments));
    assert_eq!(found("a.go", "a := `b\nplonk` // c's"), one(2, What::Text));
    assert_eq!(found("a.mjs", "const a = 1; // plonk"), one(1, What::Comments));
    assert!(found("b/package-lock.json", "\"plonk\"").is_empty());
}

#[test]
fn names_in_text_are_split_and_stable_ones_stay() {
    assert_eq!(found("a/src/lib.rs", "const A: &str = \"a_plonk\";"), one(1, What::Text));
    assert_eq!(found("a.yaml", "alert: BigPlonkRefused\n").len(), 2, "the word and the phrase");
    assert!(found("a/src/lib.rs", "const A: &str = \"plonk_id old_plonk\";").is_empty());
}

#[test]
fn declarations_are_found_and_uses_are_not() {
    for text in [
        "struct A { plonk: u8 }",
        "enum A { B(u8), Plonk }",
        "fn a(plonk: u8) {}",
        "let Some(plonk) = a else {};",
    ] {
        assert_eq!(found("a/src/lib.rs", text), one(1, What::Names), "{text}");
    }
    let uses =
        "fn a(b: Plonk) { plonk(b.plonk, A { plonk: 1 }); } // `plonk`\nconst C: &str = \"{plonk:?}\";";
    assert!(found("a/src/lib.rs", uses).is_empty());
    assert!(found("a/src/lib.rs", "struct A { plonk_id: u8 }").is_empty(), "a name of the wire");
}

#[test]
fn phrases_wrap_and_end_with_a_mark() {
    let words: Vec<String> =
        found("a.md", "a big\nplonk, big. Plonk 1 => 2\n").into_iter().map(|hit| hit.2).collect();
    assert_eq!(words, ["big plonk", "plonk", "plonk", "=>"]);
    assert!(found("a.md", "plonk <!-- prose-ok: its name -->").is_empty());
}

#[test]
fn wide_comments_and_long_tests_are_found() {
    let wide: &'static str = format!("// {}\n", "a".repeat(108)).leak();
    assert_eq!(found("a/src/lib.rs", wide)[0].1, What::Wide);
    let test: &'static str = format!("#[tokio::test]\nasync fn {}() {{}}", "a".repeat(61)).leak();
    assert_eq!(found("a/src/tests.rs", test)[0].1, What::TestNames);
}

fn counts(files: &[(&str, usize)]) -> Counts {
    files.iter().map(|(path, count)| ((*path).to_owned(), BTreeMap::from([(What::Text, *count)]))).collect()
}

#[test]
fn counts_fall_and_move_but_do_not_rise() {
    let before = counts(&[("README.md", 3), ("gone", 2)]);
    assert!(baseline::over(&before, &counts(&[("README.md", 3), ("new", 2)])).is_empty(), "moved");
    assert_eq!(baseline::over(&before, &counts(&[("README.md", 4)])).len(), 1);
    assert_eq!(baseline::over(&before, &counts(&[("new", 3), ("gone", 0)])).len(), 1);
    assert_eq!(baseline::over(&before, &counts(&[("new", 3)]))[0].2, 0);
    let lowered = baseline::lowered(&before, counts(&[("README.md", 1), ("new", 3)]));
    assert_eq!(lowered, counts(&[("README.md", 1)]));
}

#[test]
fn subject_needs_an_area_and_is_short() {
    assert!(commits::subject_fault("1", "web ui: show the rules of a route").is_none());
    assert!(commits::subject_fault("1", "Show the rules of a route").is_some());
    assert!(commits::subject_fault("1", &format!("xtask: {}", "a".repeat(60))).is_some());
}

#[test]
fn commit_of_code_needs_a_body() {
    let log = "\u{1e}1\u{1f}a: b\u{1f}\u{1f}\n\ndocs/a.md\nproto/src/a/tests.rs\n\u{1e}2\u{1f}a: b\u{1f}Why.\u{1f}\n\na.rs\n\
               \u{1e}3\u{1f}a: b\u{1f}\n\u{1f}\n\ndocs/a.md\na/src/a.rs\n";
    let faults: Vec<bool> =
        commits::parsed(log).map(|commit| commits::body_fault(&commit).is_some()).collect();
    assert_eq!(faults, [false, false, true]);
}
