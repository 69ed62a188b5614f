//! Other spellings of one request: `POST /webhooks/stripe` at `hooks.example`.
//!
//! Each is a request that some server, proxy or framework takes for that one.

use std::collections::BTreeSet;

/// The host that a route may name.
pub(crate) const HOST: &str = "hooks.example";

/// A request as it stands in its first lines.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Spelling {
    pub(crate) method: &'static str,
    pub(crate) target: String,
    pub(crate) host: &'static str,
}

/// What may stand between the two segments.
const SEPARATORS: [&str; 22] = [
    "%2F",
    "%2f",
    "%252F",
    "%252f",
    "%5C",
    "%5c",
    "%255C",
    "\\",
    "//",
    "/./",
    "/x/../",
    "/%2e/",
    "/;/",
    "/;x/",
    "%2F%2F",
    "/%2F",
    "%2F/",
    "/%5C",
    "/.%2f",
    "/.;/",
    "//../webhooks/",
    "/x/..;/",
];

/// What may stand before the path.
const PREFIXES: [&str; 24] = [
    "/",
    "/%2F",
    "/\\",
    "/%5C",
    "/.",
    "/x/..",
    "/x/..%2f",
    "/x/%2e%2e",
    "/x/%2e%2e%2f",
    "/x%2f..%2f",
    "/x/..;",
    "/x/..;y",
    "/;",
    "/;x",
    "/x;/..",
    "/..",
    "/..%2f",
    "/x\\..\\",
    "/x/..\\",
    "/x/%252e%252e",
    "//x",
    "/\\x",
    "///x",
    "/x//../..",
];

/// What may stand behind it.
const SUFFIXES: [&str; 48] = [
    "/",
    "//",
    "%2F",
    "%2f",
    "%252F",
    "%5C",
    "\\",
    "/.",
    "/./",
    "/%2e",
    "/x/..",
    "/x/%2e%2e",
    "/x%2f..",
    ";",
    ";x",
    ";x=y",
    ";x/",
    "%3B",
    "%3Bx",
    "%253Bx",
    "%00",
    "%00x",
    "%0A",
    "%0a",
    "%0D",
    "%0d%0a",
    "%09",
    "%20",
    "%20%20",
    "%1f",
    "%7F",
    "%250a",
    "%2500",
    "?",
    "%3F",
    "%3fx",
    "%23",
    "%23x",
    "#x",
    ".",
    ".json",
    "%2e",
    "/../../x",
    "/%2e%2e/%2e%2e/x",
    "/..%2f..%2fx",
    "%C2%A0",
    "/;x",
    "/..;/stripe",
];

/// Other spellings of all of it.
const WHOLE: [&str; 23] = [
    "/webhooks;x/stripe",
    "/webhooks;x=y/stripe;z",
    "/webhooks%3Bx/stripe",
    "/%77ebhooks/stripe",
    "/%2577ebhooks/stripe",
    "/webhooks/%73tripe",
    "/webhooks/strip%2565",
    "/web%00hooks/stripe",
    "/web%09hooks/stripe",
    "/webhooks%00/stripe",
    "/webhooks//../stripe",
    "/Webhooks/stripe",
    "/WEBHOOKS/STRIPE",
    "/webhooks/Stripe",
    "/webhooks/STRIPE",
    "/webhooks/%53tripe",
    "/%57ebhooks/stripe",
    "/Webhooks%2Fstripe",
    "/webhooks/%C5%BFtripe",
    "http://hooks.example/webhooks/stripe",
    "http://hooks.example/webhooks%2Fstripe",
    "http://hooks.example//webhooks/stripe",
    "http://hooks.example/Webhooks/stripe",
];

/// Spellings that begin with another method or name another host.
const OTHERWISE: [(&str, &str, &str); 14] = [
    ("post", "/webhooks/stripe", HOST),
    ("Post", "/webhooks/stripe", HOST),
    ("pOST", "/webhooks/stripe", HOST),
    ("post", "/Webhooks%2Fstripe", HOST),
    ("POST", "/webhooks/stripe", ""),
    ("POST", "/webhooks/stripe", "evil.example"),
    ("POST", "/webhooks/stripe", "127.0.0.1"),
    ("POST", "/webhooks/stripe", "[::1]:80"),
    ("POST", "/webhooks/stripe", "hooks.example.."),
    ("POST", "/webhooks/stripe", "HOOKS.example.:80"),
    ("POST", "/webhooks/stripe", "hooks%2Eexample"),
    ("POST", "/webhooks%2Fstripe", "hooks.example.."),
    ("POST", "http://evil.example/webhooks/stripe", HOST),
    ("POST", "http://hooks.example../webhooks/stripe", HOST),
];

/// All spellings, each once.
pub(crate) fn all() -> Vec<Spelling> {
    let between = SEPARATORS.map(|separator| format!("/webhooks{separator}stripe"));
    let behind = PREFIXES.map(|prefix| match prefix {
        "/" | "/\\" | "/%5C" | "/%2F" => format!("{prefix}webhooks/stripe"),
        _ if prefix.ends_with('\\') || prefix.ends_with("%2f") => {
            format!("{prefix}webhooks/stripe")
        }
        _ => format!("{prefix}/webhooks/stripe"),
    });
    let before = SUFFIXES.map(|suffix| format!("/webhooks/stripe{suffix}"));
    let targets = between.into_iter().chain(behind).chain(before);
    let targets = targets.chain(WHOLE.map(str::to_owned));
    let posts = targets.map(|target| Spelling { method: "POST", target, host: HOST });
    let otherwise = OTHERWISE.map(|(method, target, host)| Spelling {
        method,
        target: target.to_owned(),
        host,
    });
    posts.chain(otherwise).collect::<BTreeSet<_>>().into_iter().collect()
}
