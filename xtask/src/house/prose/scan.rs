//! Hits in one file: banned words by kind, wide comments, long names of tests.

use std::collections::{BTreeSet, HashMap, HashSet};

use anyhow::{Context as _, Result};

use crate::house::files::{File, Use};
use crate::house::source::{Kind, Language, Token};

const WIDEST: usize = 110;
const LONGEST_TEST: usize = 60;

/// What a hit counts as. The first three are of the product.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum What {
    /// Strings, comments of proto files, Markdown: what users read.
    Text,
    Comments,
    /// Names where they are declared; those of the wire are exempt.
    Names,
    /// Words in tests and tools.
    Tests,
    Wide,
    TestNames,
}

impl What {
    pub(crate) const ALL: [(Self, &'static str); 6] = [
        (Self::Text, "text"),
        (Self::Comments, "comments"),
        (Self::Names, "names"),
        (Self::Tests, "tests"),
        (Self::Wide, "wide"),
        (Self::TestNames, "test_names"),
    ];
}

pub(crate) struct Hit {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) what: What,
    pub(crate) found: String,
    pub(crate) advice: String,
}

struct Ban {
    words: Vec<String>,
    advice: String,
}

/// The banned words and phrases by their first word; marks such as `..=` apart.
#[derive(Default)]
pub(crate) struct Bans {
    by_first: HashMap<String, Vec<Ban>>,
    firsts: HashSet<(u8, usize)>,
    marks: Vec<(String, String)>,
    /// Names that stay although they contain a banned word, as those of the wire.
    stable: BTreeSet<String>,
}

/// A word and its line; an empty one ends a phrase.
type Word<'t> = (&'t str, usize);
/// The line of a banned mark, the mark and its replacement.
type Mark<'b> = (usize, (&'b str, &'b str));

impl Bans {
    /// Reads lines `pattern = use`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut bans = Self::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (pattern, advice) =
                line.split_once(" = ").with_context(|| format!("`{line}` is not `pattern = use`"))?;
            let words: Vec<String> = pattern.split_whitespace().map(str::to_lowercase).collect();
            let first = words.first().with_context(|| format!("`{line}` has no pattern"))?.clone();
            if first.bytes().any(|byte| byte.is_ascii_alphabetic()) {
                bans.firsts.insert((first.as_bytes()[0], first.len()));
                bans.by_first.entry(first).or_default().push(Ban { words, advice: advice.to_owned() });
            } else {
                bans.marks.push((first, advice.to_owned()));
            }
        }
        Ok(bans)
    }

    /// Adds names that stay, from lines `name: reason`.
    pub(crate) fn with_stable(mut self, text: &str) -> Result<Self> {
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (name, _reason) =
                line.split_once(": ").with_context(|| format!("`{line}` is not `name: reason`"))?;
            self.stable.insert(name.to_owned());
        }
        Ok(self)
    }

    pub(crate) fn hits(&self, files: &[File]) -> Vec<Hit> {
        let wire = files.iter().filter(|file| file.language == Language::Proto).flat_map(|file| {
            file.tokens.iter().filter(|token| token.kind == Kind::Name).map(|token| token.text)
        });
        let stable: BTreeSet<&str> = wire.chain(self.stable.iter().map(String::as_str)).collect();
        files.iter().flat_map(|file| self.of_file(file, &stable)).collect()
    }

    fn of_file(&self, file: &File, stable: &BTreeSet<&str>) -> Vec<Hit> {
        let mut hits = Vec::new();
        let mut add = |what, line, found: &str, advice: &str| {
            let (found, advice) = (found.to_owned(), advice.to_owned());
            hits.push(Hit { path: file.path.clone(), line, what, found, advice });
        };
        let stem = file.path.rsplit('/').next().and_then(|name| name.split('.').next()).unwrap_or_default();
        let product = |what, test: bool| if test || file.use_ != Use::Product { What::Tests } else { what };
        let lines_wrap = matches!(file.language, Language::Prose | Language::Settings);
        for run in file.tokens.chunk_by(|one, next| one.kind == next.kind && one.test == next.test) {
            let read =
                file.language == Language::Proto && run[0].kind == Kind::Comment || run[0].kind == Kind::Text;
            if !read && run[0].kind != Kind::Comment {
                continue;
            }
            let what = product(if read { What::Text } else { What::Comments }, run[0].test);
            let wraps = run[0].kind == Kind::Comment || lines_wrap;
            for text in run.chunk_by(|one, next| wraps && next.line == one.line + 1) {
                let (mut words, marks) = self.words(text, file.language);
                if run[0].kind == Kind::Text {
                    words = spread(words, stable);
                }
                self.phrases(&words, |line, found, advice| add(what, line, found, advice));
                marks.into_iter().for_each(|(line, (found, advice))| add(what, line, found, advice));
            }
        }
        if matches!(file.language, Language::Rust | Language::Script | Language::Svelte) {
            for (name, line, test) in
                declared(&file.tokens).into_iter().chain([(stem, 1, file.use_ == Use::Test)])
            {
                if stable.contains(name) {
                    continue;
                }
                let words: Vec<Word<'_>> = parts(name).into_iter().map(|part| (part, line)).collect();
                self.phrases(&words, |_, found, advice| add(product(What::Names, test), line, found, advice));
            }
        }
        for name in long_tests(&file.tokens) {
            add(What::TestNames, name.line, name.text, "at most 60 characters: subject_does_what_when");
        }
        for line in wide(file) {
            add(What::Wide, line, "comment", "at most 110 columns");
        }
        let excused = excused(file.text);
        hits.retain(|hit| !excused.contains(&hit.line));
        hits
    }

    /// Calls back for each banned phrase in a run of words.
    fn phrases(&self, words: &[Word<'_>], mut found: impl FnMut(usize, &str, &str)) {
        for (at, (word, line)) in words.iter().enumerate() {
            let Some(first) = word.bytes().next() else { continue };
            if !self.firsts.contains(&(first.to_ascii_lowercase(), word.len())) {
                continue;
            }
            for ban in self.by_first.get(&word.to_ascii_lowercase()).into_iter().flatten() {
                let rest = words[at..].iter().map(|(word, _)| *word);
                if rest.len() >= ban.words.len()
                    && ban.words.iter().zip(rest).all(|(ban, word)| word.eq_ignore_ascii_case(ban))
                {
                    found(*line, &ban.words.join(" "), &ban.advice);
                }
            }
        }
    }

    /// Returns the words outside code and placeholders, and the banned marks, each with its line.
    fn words<'t>(&self, tokens: &'t [Token], language: Language) -> (Vec<Word<'t>>, Vec<Mark<'_>>) {
        let (mut words, mut marks) = (Vec::new(), Vec::new());
        let mut code = false;
        for token in tokens {
            let bytes = token.text.as_bytes();
            let (mut at, mut line) = (0, token.line);
            while at < bytes.len() {
                let end = word_end(bytes, at);
                match bytes[at] {
                    b'`' => code = !code,
                    b'{' if language == Language::Rust && token.kind == Kind::Text => {
                        at = placeholder(bytes, at);
                        continue;
                    }
                    _ if end > at && !code => words.push((&token.text[at..end], line)),
                    b' ' | b'\n' | b'-' | b'"' | b'\'' | b'*' | b'/' | b'!' => {}
                    _ => words.push(("", line)),
                }
                for (mark, advice) in &self.marks {
                    if !code && bytes[at..].starts_with(mark.as_bytes()) {
                        marks.push((line, (mark.as_str(), advice.as_str())));
                    }
                }
                line += usize::from(bytes[at] == b'\n');
                at = end.max(at + 1);
            }
        }
        (words, marks)
    }
}

fn word_end(bytes: &[u8], at: usize) -> usize {
    let word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80;
    at + bytes[at..].iter().take_while(|byte| word(byte)).count()
}

/// Returns the place after `{name:format}`, or after the brace if it opens something else.
fn placeholder(bytes: &[u8], at: usize) -> usize {
    let inside = |byte: &u8| byte.is_ascii_alphanumeric() || b"_:.?#<>^$*".contains(byte);
    let end = at + 1 + bytes[at + 1..].iter().take_while(|byte| inside(byte)).count();
    if bytes.get(end) == Some(&b'}') { end + 1 } else { at + 1 }
}

/// Splits the names among words, so that no underscore hides a word.
fn spread<'t>(words: Vec<Word<'t>>, stable: &BTreeSet<&str>) -> Vec<Word<'t>> {
    let mut all = Vec::with_capacity(words.len());
    for (word, line) in words {
        let parts = parts(word);
        if parts.len() < 2 || stable.contains(word) {
            all.push((word, line));
        } else {
            all.push(("", line));
            all.extend(parts.into_iter().map(|part| (part, line)));
            all.push(("", line));
        }
    }
    all
}

/// Splits a name at underscores and at upper-case letters.
fn parts(name: &str) -> Vec<&str> {
    let bytes = name.as_bytes();
    let mut parts = Vec::new();
    let mut from = 0;
    for at in 1..=bytes.len() {
        let ends = at == bytes.len()
            || bytes[at] == b'_'
            || bytes[at].is_ascii_uppercase() && !bytes[at - 1].is_ascii_uppercase();
        if ends {
            parts.push(name.get(from..at).unwrap_or_default().trim_matches('_'));
            from = at;
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

const DECLARES: [&str; 16] = [
    "fn",
    "struct",
    "enum",
    "union",
    "trait",
    "type",
    "mod",
    "const",
    "static",
    "mut",
    "for",
    "let",
    "as",
    "class",
    "function",
    "interface",
];

/// Returns the names that the file declares: items, bindings, parameters, fields, variants; not their uses.
fn declared(tokens: &[Token]) -> Vec<(&'static str, usize, bool)> {
    let code: Vec<&Token> = tokens.iter().filter(|token| token.kind != Kind::Comment).collect();
    let mut names = Vec::new();
    let (mut depth, mut body, mut signature, mut binding) = (0, Vec::new(), false, false);
    let mut awaits = None;
    for (at, token) in code.iter().enumerate() {
        let before = at.checked_sub(1).map_or("", |before| code[before].text);
        let next = code.get(at + 1).map_or("", |next| next.text);
        if token.kind == Kind::Mark {
            depth += i32::from(["{", "(", "["].contains(&token.text));
            if token.is("{") && awaits.take().is_some() {
                body.push(depth);
            }
            signature &= !token.is("{") && !token.is(";");
            binding &= !token.is("=") && !token.is(";");
            if ["}", ")", "]"].contains(&token.text) {
                body.retain(|opened| *opened != depth);
                depth -= 1;
            }
            awaits = awaits.filter(|_| !token.is(";"));
            continue;
        }
        if token.kind != Kind::Name {
            continue;
        }
        match token.text {
            "struct" | "enum" | "union" | "interface" => awaits = Some(()),
            "fn" | "function" => signature = true,
            "let" | "const" => binding = true,
            _ => {}
        }
        let typed = next == ":" && code.get(at + 2).is_none_or(|mark| !mark.is(":")) && before != ":";
        let member = body.last() == Some(&depth) && (typed || ["{", ",", "]", "}"].contains(&before));
        let lower = token.text.starts_with(|c: char| c.is_lowercase());
        let bound = binding && lower && !["(", "{", ":", "!", "."].contains(&next) && before != ":";
        let keyword = DECLARES.contains(&token.text)
            || ["pub", "ref", "crate", "self", "async", "await"].contains(&token.text);
        if !keyword && (DECLARES.contains(&before) || signature && typed || member || bound) {
            names.push((token.text, token.line, token.test));
        }
    }
    names
}

/// Returns the names of test functions that are too long.
fn long_tests(tokens: &[Token]) -> impl Iterator<Item = &Token> {
    let test = |three: &&[Token]| three[0].is("test") && three[1].is("]");
    tokens.windows(2).enumerate().filter(move |(_, pair)| test(pair)).filter_map(|(at, _)| {
        let name = tokens[at..].windows(2).find(|pair| pair[0].is("fn")).map(|pair| &pair[1])?;
        (name.text.len() > LONGEST_TEST).then_some(name)
    })
}

/// Returns the lines on which a comment ends beyond the widest column; none in the files around the code.
fn wide(file: &File) -> Vec<usize> {
    if ![".rs", ".proto", ".ts", ".svelte"].iter().any(|ending| file.path.ends_with(ending)) {
        return Vec::new();
    }
    let lines: Vec<&str> = file.text.lines().collect();
    let comments = file.tokens.iter().filter(|token| token.kind == Kind::Comment);
    let spans = comments.flat_map(|token| token.line..=token.line + token.text.matches('\n').count());
    let wide = |line: &usize| {
        lines.get(line - 1).is_some_and(|text| text.len() > WIDEST && text.chars().count() > WIDEST)
    };
    spans.filter(wide).collect()
}

/// Returns the lines that give a reason after `prose-ok:`.
fn excused(text: &str) -> Vec<usize> {
    if !text.contains("prose-ok:") {
        return Vec::new();
    }
    let reason = |line: &str| line.split_once("prose-ok:").is_some_and(|(_, reason)| reason.trim().len() > 3);
    text.lines().enumerate().filter(|(_, line)| reason(line)).map(|(at, _)| at + 1).collect()
}
