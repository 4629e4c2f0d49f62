//! Methods whose name says that calling them twice is not calling them once.
//!
//! A guess from the first word, kept narrow: a false alarm teaches people to ignore findings. Left out on purpose
//! are words that also begin names of reads (`Order`, `Book`, `Issue`, `Credit`), that replace a state (`Set`,
//! `Put`, `Update`) or take it away for good (`Delete`, `Cancel`): a repeat of those leaves what the first call left.

/// First words of methods that add something each time they are called.
const VERBS: [&str; 27] = [
    "add",
    "append",
    "buy",
    "charge",
    "consume",
    "create",
    "debit",
    "decrement",
    "deposit",
    "emit",
    "enqueue",
    "increment",
    "insert",
    "notify",
    "pay",
    "place",
    "post",
    "publish",
    "purchase",
    "push",
    "redeem",
    "refund",
    "reserve",
    "send",
    "submit",
    "take",
    "transfer",
];

/// True if the name of `package.Service/Method` begins with such a word.
#[must_use]
pub fn changes_something(method: &str) -> bool {
    let name = method.rsplit('/').next().unwrap_or_default();
    let is_first_word = |verb: &str| {
        let (head, rest) = match (name.get(..verb.len()), name.get(verb.len()..)) {
            (Some(head), Some(rest)) => (head, rest),
            _ => return false,
        };
        head.eq_ignore_ascii_case(verb) && !rest.starts_with(|next: char| next.is_ascii_lowercase())
    };
    VERBS.into_iter().any(is_first_word)
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
        ] {
            assert!(changes_something(method), "{method}");
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
            "a.B/\u{e4}dd",
        ] {
            assert!(!changes_something(method), "{method}");
        }
    }
}
