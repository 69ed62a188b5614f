//! The request vectors of llhttp, where `SEMEL_HTTP_VECTORS` names a folder with them: the gateway
//! is at least as strict as llhttp in strict mode.
//!
//! Of a vector that llhttp rejects after some whole messages, no more than these reach the
//! upstream. Most vectors name no host and are refused for that alone, so each is sent a second
//! time with one.

use std::{fs, path::PathBuf, time::Duration};

use data_encoding::BASE64;
use serde_json::Value;

use crate::{
    harness::{WatchedGateway, shown},
    recorder::Recorder,
};

/// What llhttp rejects and the gateway passes on, and why that is safe.
const EXCEPTIONS: &[(&str, &str)] = &[
    (
        "HTTP protocol and ANNOUNCE method",
        "llhttp knows a fixed list of methods. A gateway passes on methods that it does not know \
         (RFC 9110, section 16.1); it guards those that a route names.",
    ),
    ("Invalid method", "the same: MKCOLA is a token, and so it is a method"),
    (
        "No extension after semicolon",
        "Extensions of chunks are dropped: the gateway writes its own chunks. Their end, the \
         CRLF, is read strictly.",
    ),
    ("Unbalanced chunk extensions quoting", "the same: the quotes end nothing but the extension"),
    (
        "Space after chunk header",
        "RFC 9112, section 7.1.1 lets blanks stand before an extension; nothing but blanks, a \
         semicolon or CRLF may follow a size, and none of them reaches the upstream.",
    ),
];

/// How long an answer may take.
const SILENCE: Duration = Duration::from_millis(150);

#[expect(clippy::disallowed_methods, reason = "the vectors are not part of this repository")]
fn folder() -> Option<PathBuf> {
    std::env::var("SEMEL_HTTP_VECTORS").ok().map(PathBuf::from)
}

struct Vector {
    title: String,
    bytes: Vec<u8>,
    /// How many whole messages there are at most.
    messages: usize,
    reason: String,
}

/// What llhttp rejects in strict mode. A pause is no rejection: there llhttp hands over.
fn rejected(file: &str) -> Vec<Vector> {
    let all: Vec<Value> = serde_json::from_str(file).unwrap();
    let is_strict = |vector: &&Value| {
        let kind = vector["meta"]["type"].as_str().unwrap_or_default();
        let reason = vector["reason"].as_str().unwrap_or_default();
        vector["kind"] == "request"
            && kind == "request"
            && vector["rejected"] == true
            && !reason.starts_with("Pause")
    };
    let vectors = all.iter().filter(is_strict).map(|vector| Vector {
        title: vector["title"].as_str().unwrap().to_owned(),
        bytes: BASE64.decode(vector["bytes_base64"].as_str().unwrap().as_bytes()).unwrap(),
        messages: usize::try_from(vector["messages"].as_u64().unwrap()).unwrap(),
        reason: vector["reason"].to_string(),
    });
    vectors.collect()
}

/// The vector with a host, after its first line.
fn with_host(bytes: &[u8]) -> Vec<u8> {
    let end = bytes.windows(2).position(|two| two == b"\r\n").map_or(bytes.len(), |end| end + 2);
    [&bytes[..end], b"Host: a\r\n", &bytes[end..]].concat()
}

#[test]
fn the_gateway_is_as_strict_as_llhttp() {
    let Some(folder) = folder() else {
        println!("skipped: SEMEL_HTTP_VECTORS names no folder with llhttp-vectors.json");
        return;
    };
    let file = fs::read_to_string(folder.join("llhttp-vectors.json")).unwrap();
    let vectors = rejected(&file);
    assert!(vectors.len() > 40, "only {} vectors", vectors.len());
    let recorder = Recorder::start();
    let gateway = WatchedGateway::start(recorder.address, "");
    let (mut passed, mut sent) = (Vec::new(), 0);
    for vector in &vectors {
        let has_host = vector.bytes.windows(6).any(|six| six.eq_ignore_ascii_case(b"\nhost:"));
        let second = (!has_host).then(|| with_host(&vector.bytes));
        for bytes in [Some(vector.bytes.clone()), second].into_iter().flatten() {
            // What is not whole may yet become it: an end of lines, or of chunks.
            for end in ["", "\r\n\r\n", "\r\n0\r\n\r\n"] {
                let bytes = [&bytes, end.as_bytes()].concat();
                let before = recorder.requests();
                gateway.converse(&bytes, SILENCE);
                sent += 1;
                let whole = recorder.requests() - before;
                if whole <= vector.messages {
                    continue;
                }
                let is_it = |(title, _): &(&str, _)| vector.title.ends_with(title);
                if !EXCEPTIONS.iter().any(is_it) {
                    let Vector { title, reason, .. } = vector;
                    passed.push(format!("{title} ({reason}): {}", shown(&bytes)));
                }
            }
        }
    }
    println!("{} vectors that llhttp rejects, {sent} conversations", vectors.len());
    assert_eq!(recorder.malformed(), Vec::<String>::new());
    assert!(passed.is_empty(), "passed on:\n{}", passed.join("\n"));
}
