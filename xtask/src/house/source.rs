//! A small lexer: comments, strings, names and marks of Rust, proto, TypeScript, Svelte, Markdown, and of the
//! files around them: CSS, Go, JSON, and settings (YAML, TOML, shell), whose lines are text and `#` comments.
//!
//! It knows enough of each language to keep a comment apart from a string and a test apart from the product.
//! It does not know TypeScript's regular expressions: a quote in one opens a string up to the line's end.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Language {
    Rust,
    Proto,
    Script,
    Svelte,
    Prose,
    Css,
    Go,
    Json,
    Settings,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Comment,
    Text,
    Name,
    Mark,
}

/// A piece of a file. `line` counts from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) text: &'static str,
    pub(crate) line: usize,
    pub(crate) test: bool,
}

impl Token {
    pub(crate) fn is(&self, text: &str) -> bool {
        self.text == text && matches!(self.kind, Kind::Name | Kind::Mark)
    }
}

/// Returns the tokens of a file, those of `#[cfg(test)]` and `#[test]` items marked as tests.
pub(crate) fn tokens(text: &'static str, language: Language) -> Vec<Token> {
    let mut lexer = Lexer { text, at: 0, line: 1, language, out: Vec::with_capacity(text.len() / 5) };
    match language {
        Language::Prose => lexer.prose(),
        Language::Svelte => lexer.markup(),
        Language::Settings => lexer.settings(),
        _ => lexer.code(false),
    }
    let mut tokens = lexer.out;
    if language == Language::Rust {
        mark_tests(&mut tokens);
    }
    tokens
}

struct Lexer {
    text: &'static str,
    at: usize,
    line: usize,
    language: Language,
    out: Vec<Token>,
}

impl Lexer {
    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn sees(&self, text: &str) -> bool {
        self.text.as_bytes()[self.at..].starts_with(text.as_bytes())
    }

    /// Emits the text from here to `end`.
    fn emit(&mut self, kind: Kind, end: usize) {
        let text = &self.text[self.at..end];
        self.out.push(Token { kind, text, line: self.line, test: false });
        self.skip(end);
    }

    fn skip(&mut self, end: usize) {
        self.line += self.text.as_bytes()[self.at..end].iter().filter(|byte| **byte == b'\n').count();
        self.at = end;
    }

    /// The place after the next `needle` from `from` on, or the end of the file.
    fn after(&self, needle: &str, from: usize) -> usize {
        let from = from.min(self.text.len());
        self.text[from..].find(needle).map_or(self.text.len(), |at| from + at + needle.len())
    }

    fn line_end(&self) -> usize {
        self.text[self.at..].find('\n').map_or(self.text.len(), |at| self.at + at)
    }

    /// Reads code to the end, or up to the brace that closes an expression in a template.
    fn code(&mut self, nested: bool) {
        let mut depth = 0;
        while let Some(byte) = self.byte() {
            match byte {
                b'/' if self.sees("//") && self.language != Language::Css => {
                    self.emit(Kind::Comment, self.line_end())
                }
                b'/' if self.sees("/*") => self.emit(Kind::Comment, self.block_comment()),
                b'<' if nested && self.sees("</script") => return,
                b'"' => self.quoted(b'"'),
                b'\'' if self.language == Language::Rust => self.apostrophe(),
                b'\'' => self.quoted(b'\''),
                b'`' if matches!(self.language, Language::Script | Language::Svelte) => self.template(),
                b'`' if self.language == Language::Go => self.quoted(b'`'),
                b'}' if nested && depth == 0 => return,
                b'_' | b'$' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | 0x80.. => self.name(),
                b' ' | b'\t' | b'\r' | b'\n' => self.skip(self.at + 1),
                _ => {
                    depth += i32::from(byte == b'{') - i32::from(byte == b'}');
                    self.emit(Kind::Mark, self.at + 1);
                }
            }
        }
    }

    /// Rust's block comments nest.
    fn block_comment(&self) -> usize {
        let mut end = self.after("*/", self.at + 2);
        if self.language == Language::Rust {
            let mut inner = self.at + 2;
            while let Some(open) = self.text[inner..end].find("/*") {
                inner += open + 2;
                end = self.after("*/", end);
            }
        }
        end
    }

    /// A string up to its quote; in a script at most to the end of its line.
    fn quoted(&mut self, quote: u8) {
        self.at += 1;
        let script = matches!(self.language, Language::Script | Language::Svelte);
        let bytes = self.text.as_bytes();
        let mut end = self.at;
        while end < bytes.len() && bytes[end] != quote && !(script && bytes[end] == b'\n') {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        self.close(end);
    }

    /// Emits the text up to a closing quote and skips the quote.
    fn close(&mut self, mut end: usize) {
        end = end.min(self.text.len());
        while !self.text.is_char_boundary(end) {
            end += 1;
        }
        self.emit(Kind::Text, end);
        if self.byte().is_some_and(|byte| byte != b'\n') {
            self.at += 1;
        }
    }

    /// A character or a lifetime of Rust.
    fn apostrophe(&mut self) {
        let mut rest = self.text[self.at + 1..].chars();
        match (rest.next(), rest.next()) {
            (Some('\\'), Some(escaped)) => {
                let from = self.at + 2 + escaped.len_utf8();
                self.skip(self.after("'", from));
            }
            (Some(char), Some('\'')) => self.skip(self.at + char.len_utf8() + 2),
            _ => self.skip(self.at + 1),
        }
    }

    fn template(&mut self) {
        self.at += 1;
        let bytes = self.text.as_bytes();
        let mut end = self.at;
        while end < bytes.len() && bytes[end] != b'`' {
            if bytes[end..].starts_with(b"${") {
                self.emit(Kind::Text, end);
                self.at += 2;
                self.code(true);
                self.at = (self.at + 1).min(bytes.len());
                end = self.at;
            } else {
                end += if bytes[end] == b'\\' { 2 } else { 1 };
            }
        }
        self.close(end);
    }

    fn name(&mut self) {
        let rest = &self.text[self.at..];
        let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '$').unwrap_or(rest.len());
        let length = length.max(rest.chars().next().map_or(1, char::len_utf8));
        let (name, after) = rest.split_at(length);
        let hashes = after.bytes().take_while(|byte| *byte == b'#').count();
        let raw = matches!(name, "r" | "br" | "cr") && after[hashes..].starts_with('"');
        if self.language != Language::Rust || !raw {
            return self.emit(Kind::Name, self.at + length);
        }
        self.at += length + hashes + 1;
        let close = format!("\"{}", "#".repeat(hashes));
        let end = self.after(&close, self.at);
        self.emit(Kind::Text, end.saturating_sub(close.len()).max(self.at));
        self.at = end;
    }

    /// Markup of Svelte: text between tags and in attributes, code in scripts and braces.
    fn markup(&mut self) {
        while let Some(byte) = self.byte() {
            if self.sees("<!--") {
                self.emit(Kind::Comment, self.after("-->", self.at));
            } else if self.sees("<style") {
                self.skip(self.after("</style>", self.at));
            } else if self.sees("<script") {
                self.skip(self.after(">", self.at));
                self.code(true);
            } else if byte == b'<' {
                self.tag();
            } else if byte == b'{' {
                self.expression();
            } else {
                let rest = &self.text[self.at..];
                self.emit(Kind::Text, self.at + rest.find(['<', '{']).unwrap_or(rest.len()));
            }
        }
    }

    fn expression(&mut self) {
        self.at += 1;
        self.code(true);
        self.at = (self.at + 1).min(self.text.len());
    }

    /// The classes of a tag are names of the style sheet, not text.
    fn tag(&mut self) {
        self.at += 1;
        let mut class = false;
        while let Some(byte) = self.byte() {
            match byte {
                b'>' => return self.skip(self.at + 1),
                b'"' if class => self.skip(self.after("\"", self.at + 1)),
                b'"' | b'\'' => self.attribute(byte),
                b'{' => self.expression(),
                b'a'..=b'z' | b'A'..=b'Z' => {
                    self.name();
                    class = self.out.last().is_some_and(|token| token.text == "class");
                }
                0x80.. => self.name(),
                _ => self.skip(self.at + 1),
            }
        }
    }

    fn attribute(&mut self, quote: u8) {
        self.at += 1;
        let quote = char::from(quote);
        while self.byte().is_some() {
            let rest = &self.text[self.at..];
            let end = self.at + rest.find([quote, '{']).unwrap_or(rest.len());
            let closed = self.text[end..].starts_with(quote) || end == self.text.len();
            if closed {
                return self.close(end);
            }
            self.emit(Kind::Text, end);
            self.expression();
        }
    }

    /// Lines of settings: text, then a comment from a `#` at the start or after a space.
    fn settings(&mut self) {
        while self.at < self.text.len() {
            let end = self.line_end();
            let line = &self.text[self.at..end];
            let opens = |(at, _): &(usize, &str)| *at == 0 || line[..*at].ends_with([' ', '\t']);
            let comment = line.match_indices('#').find(opens).map_or(end, |(at, _)| self.at + at);
            if comment > self.at {
                self.emit(Kind::Text, comment);
            }
            if end > comment {
                self.emit(Kind::Comment, end);
            }
            self.skip((end + 1).min(self.text.len()));
        }
    }

    /// The lines of Markdown outside fenced code.
    fn prose(&mut self) {
        let mut fenced = false;
        while self.at < self.text.len() {
            let end = self.line_end();
            let fence = self.text[self.at..end].trim_start().starts_with("```");
            if !fence && !fenced && end > self.at {
                self.emit(Kind::Text, end);
            }
            fenced ^= fence;
            self.skip((end + 1).min(self.text.len()));
        }
    }
}

/// Marks each item below `#[cfg(test)]` or a test's attribute, attribute and all.
fn mark_tests(tokens: &mut [Token]) {
    let mut at = 0;
    while at < tokens.len() {
        let Some((after, test)) = attribute(tokens, at) else {
            at += 1;
            continue;
        };
        let end = match (test, tokens.get(at + 1)) {
            (true, Some(mark)) if mark.is("!") => tokens.len(),
            (true, _) => item_end(tokens, after),
            (false, _) => after,
        };
        if test {
            tokens[at..end].iter_mut().for_each(|token| token.test = true);
        }
        at = end;
    }
}

/// Returns the place after the attribute here, if there is one, and if it makes its item a test.
fn attribute(tokens: &[Token], at: usize) -> Option<(usize, bool)> {
    let open = at + 1 + usize::from(tokens.get(at + 1)?.is("!"));
    if !tokens[at].is("#") || !tokens.get(open)?.is("[") {
        return None;
    }
    let mut depth = 0;
    let close = (open..tokens.len()).find(|place| {
        depth += i32::from(tokens[*place].is("[")) - i32::from(tokens[*place].is("]"));
        depth == 0
    })?;
    let inside = &tokens[open + 1..close];
    let has = |name| inside.iter().any(|token| token.is(name));
    let cfg = inside.first()?.is("cfg");
    let path_ends = inside.iter().position(|token| token.is("(")).unwrap_or(inside.len());
    let test = if cfg { has("test") && !has("not") } else { inside[..path_ends].last()?.is("test") };
    Some((close + 1, test))
}

const ITEMS: [&str; 13] = [
    "fn",
    "mod",
    "use",
    "impl",
    "struct",
    "enum",
    "const",
    "static",
    "type",
    "trait",
    "let",
    "macro_rules",
    "extern",
];

/// Returns the place after the item, field or variant that begins here.
fn item_end(tokens: &[Token], mut at: usize) -> usize {
    while let Some((after, _)) = attribute(tokens, at) {
        at = after;
    }
    let item = tokens[at..].iter().filter(|token| token.kind == Kind::Name).take(4);
    let item = item.into_iter().any(|token| ITEMS.contains(&token.text));
    let mut depth = 0;
    while let Some(token) = tokens.get(at) {
        if token.kind == Kind::Mark {
            depth += i32::from(["{", "(", "["].contains(&token.text));
            depth -= i32::from(["}", ")", "]"].contains(&token.text));
            let ends = token.is("}") || token.is(";") || (token.is(",") && !item);
            if depth < 0 {
                return at;
            }
            if depth == 0 && ends {
                return at + 1;
            }
        }
        at += 1;
    }
    at
}
