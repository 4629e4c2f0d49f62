//! Guesses from method names: methods that add data on each call, and methods that only read.
//!
//! A name can be of neither kind. Findings need a first word that adds something each time, because false
//! alarms teach operators to ignore findings. Words that replace a state (`Set`, `Put`, `Update`) or remove
//! it (`Delete`, `Cancel`) are left out: a second call leaves the same state. Proposals to retry after any
//! failure need a name of a read, because the operator who accepts one may not consider other effects.

/// First words of methods that add data on each call.
const VERBS: [&str; 43] = [
    "add",
    "allocate",
    "append",
    "buy",
    "capture",
    "charge",
    "clone",
    "consume",
    "create",
    "debit",
    "decrement",
    "deposit",
    "dispatch",
    "emit",
    "enqueue",
    "execute",
    "generate",
    "increment",
    "insert",
    "invite",
    "mail",
    "notify",
    "pay",
    "place",
    "post",
    "publish",
    "purchase",
    "push",
    "redeem",
    "refund",
    "register",
    "reserve",
    "sell",
    "send",
    "ship",
    "spawn",
    "submit",
    "subscribe",
    "take",
    "transfer",
    "trigger",
    "upload",
    "withdraw",
];
/// Verbs that are nouns too: `BookRoom`, but `BookDetails`.
const VERBS_AND_NOUNS: [&str; 10] =
    ["book", "copy", "credit", "import", "issue", "order", "print", "record", "schedule", "start"];
/// Words of reads with such a noun.
const READ_WORDS: [&str; 12] = [
    "by", "count", "details", "history", "info", "list", "price", "report", "state", "status", "summary",
    "total",
];
/// Prefixes of batch methods.
const BATCH_PREFIXES: [&str; 3] = ["batch", "bulk", "multi"];
/// First words of methods that only read and return at once. `Watch`, `Listen` and similar words open
/// streams.
const READERS: [&str; 20] = [
    "check", "compare", "count", "describe", "download", "exists", "fetch", "find", "get", "has", "head",
    "is", "list", "lookup", "query", "read", "resolve", "search", "show", "view",
];
/// Words that turn a read into something else: `GetOrCreate`, `FindAndModify`, `CheckIn`.
const NOT_READS: [&str; 8] = ["and", "in", "next", "or", "out", "then", "until", "watch"];

/// Returns true if the name of `package.Service/Method` suggests that each call adds data.
pub(super) fn adds_data(method: &str) -> bool {
    if let Some(verb) = http_verb(method) {
        return matches!(verb, "POST" | "PATCH");
    }
    let name = verb_on(method);
    let reads = || words(name).any(|word| is_one_of(&READ_WORDS, word));
    VERBS.iter().any(|verb| begins_with(name, verb))
        || VERBS_AND_NOUNS.iter().any(|verb| begins_with(name, verb)) && !reads()
}

/// Returns true if the name of `package.Service/Method` suggests that it only reads.
#[must_use]
pub fn only_reads(method: &str) -> bool {
    if let Some(verb) = http_verb(method) {
        return matches!(verb, "GET" | "HEAD" | "OPTIONS" | "TRACE");
    }
    let name = verb_on(method);
    READERS.iter().any(|verb| begins_with(name, verb))
        && !words(name).any(|word| is_one_of(&NOT_READS, word) || is_one_of(&VERBS, word))
}

/// Returns the verb of `GET:/path`.
fn http_verb(method: &str) -> Option<&str> {
    method.split_once(":/").map(|(verb, _)| verb)
}

/// Returns the method's name from its verb on.
fn verb_on(method: &str) -> &str {
    let name = method.rsplit('/').next().unwrap_or_default();
    let several = BATCH_PREFIXES.into_iter().find(|several| begins_with(name, several));
    let rest = several.and_then(|several| name.get(several.len()..)).unwrap_or(name).trim_start_matches('_');
    if rest.is_empty() { name } else { rest }
}

/// Returns true if this is the whole first word of the name.
fn begins_with(name: &str, word: &str) -> bool {
    let (Some(head), Some(rest)) = (name.get(..word.len()), name.get(word.len()..)) else { return false };
    head.eq_ignore_ascii_case(word) && !rest.starts_with(|next: char| next.is_ascii_lowercase())
}

/// Returns the words of `oneTwo`, `OneTwo` and `one_two`.
fn words(name: &str) -> impl Iterator<Item = &str> {
    let mut rest = name;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches('_');
        let mut before = '_';
        let end = rest.char_indices().find(|(_, c)| {
            let begins = *c == '_' || c.is_ascii_uppercase() && !before.is_ascii_uppercase() && before != '_';
            before = *c;
            begins
        });
        let (word, behind) = rest.split_at(end.map_or(rest.len(), |(at, _)| at));
        rest = behind;
        (!word.is_empty()).then_some(word)
    })
}

fn is_one_of(list: &[&str], word: &str) -> bool {
    list.iter().any(|other| other.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_first_word_counts() {
        for method in [
            "shop.v1.Stock/Take",
            "a.B/CreateOrder",
            "a.B/create_order",
            "a.B/sendMail",
            "a.B/Pay2",
            "a.B/PAY",
            "a.B/Withdraw",
            "a.B/BatchCreateOrders",
            "a.B/bulk_insert",
            "a.B/BookRoom",
            "a.B/Order",
            "a.B/IssueRefund",
            "a.B/Execute",
            "a.B/Upload",
            "a.B/ImportUsers",
            "a.B/StartJob",
        ] {
            assert!(adds_data(method), "{method}");
        }
        for method in [
            "a.B/Get",
            "a.B/Payments",
            "a.B/Address",
            "a.B/Posts",
            "a.B/Placement",
            "a.B/Takeaways",
            "a.B/Delete",
            "a.B/ListAdd",
            "Create.Add/List",
            "a.B/Ad",
            "a.B/OrderStatus",
            "a.B/ImportStatus",
            "a.B/Subscriptions",
            "a.B/StartsWith",
            "a.B/BookDetails",
            "a.B/Orders",
            "a.B/BatchGet",
            "a.B/Registered",
            "a.B/Batch",
            "a.B/\u{e4}dd",
        ] {
            assert!(!adds_data(method), "{method}");
        }
    }

    #[test]
    fn only_names_of_reads_are_reads() {
        for method in [
            "a.B/Get",
            "a.B/GetOrder",
            "a.B/get_order",
            "a.B/BatchGetOrders",
            "a.B/MultiGet",
            "a.B/ListOrders",
            "a.B/LookUpName",
            "a.B/IsThere",
            "a.B/Exists",
            "a.B/SearchByName",
        ] {
            assert!(only_reads(method), "{method}");
        }
        for method in [
            "a.B/Withdraw",
            "a.B/BatchCreateOrders",
            "a.B/GetOrCreate",
            "a.B/get_or_create",
            "a.B/GetAndIncrement",
            "a.B/FindThenDelete",
            "a.B/CheckIn",
            "a.B/Checkout",
            "a.B/CheckOut",
            "a.B/FetchNext",
            "a.B/Watch",
            "a.B/Listen",
            "a.B/ListAndWatch",
            "a.B/Process",
            "a.B/Update",
            "a.B/Getaway",
            "a.B/Issue",
            "a.B/",
            "a.B/Batch",
        ] {
            assert!(!only_reads(method), "{method}");
        }
    }
}
