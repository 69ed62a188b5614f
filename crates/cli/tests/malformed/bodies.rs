//! Bodies that are not what their headers say, on routes that read them before anything is done.

use semel::core::Problem;

use crate::harness::{Case, charge};

const NOT_JSON: &[&str] = &[
    " ",
    "{",
    "}",
    "[",
    "[1",
    "[1,",
    "[1,]",
    "[,1]",
    "{\"a\"",
    "{\"a\":",
    "{\"a\":1",
    "{\"a\":1,",
    "{\"a\":1,}",
    "{\"a\" 1}",
    "{a:1}",
    "{'a':1}",
    "{1:1}",
    "{\"a\":1}}",
    "{\"a\":1} {\"a\":1}",
    "hello",
    "\"hello",
    "\"\\x\"",
    "\"\\u12\"",
    "\"\u{1}\"",
    "\"a\nb\"",
    "01",
    "+1",
    "1.",
    ".1",
    "1e",
    "0x1",
    "NaN",
    "-Infinity",
    "1e99999999999999999999",
    "nul",
    "True",
    "undefined",
    "// a\n1",
    "/* a */ 1",
    "amount=1",
    "{\"a\":1,\"a\":1}",
    "{\"a\":1,\"\\u0061\":2}",
    "{\"b\":{\"a\":1,\"a\":2}}",
];

fn typed(kind: &str, more: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "POST /charges HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer opaque\r\n\
         Idempotency-Key: bodies\r\nContent-Type: {kind}\r\n{more}Content-Length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Keys in the body of a webhook.
const HOOKS: &[(Problem, &str)] = &[
    (Problem::KeyMissing, "{}"),
    (Problem::KeyMissing, "[\"id\"]"),
    (Problem::KeyMissing, "\"id\""),
    (Problem::KeyMalformed, "{\"id\":null}"),
    (Problem::KeyMalformed, "{\"id\":[]}"),
    (Problem::KeyMalformed, "{\"id\":{}}"),
    (Problem::KeyMalformed, "{\"id\":\"\"}"),
    (Problem::KeyMalformed, "{\"id\":\"\\ud800\"}"),
    (Problem::BodyMalformed, "{\"id\":\"a\",\"id\":\"b\"}"),
    (Problem::BodyMalformed, "{\"id\":\"a\""),
    (Problem::BodyMalformed, "id=a"),
];

/// `{"amount":1}`
const GZIP: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\x56\x4a\xcc\xcd\x2f\xcd\x2b\x51\
                      \xb2\x32\xac\x05\x00\x40\xb4\xed\x21\x0c\x00\x00\x00";

/// 70,000 times the letter a, which is more than the route reads.
fn bomb() -> Vec<u8> {
    let start = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xed\xc1\x31\x01\x00\x00\x00\xc2\xa0\xac\
                  \xeb\x5f\xc2\x12\x9e\x40\x01";
    let end = b"\x6f\x03\x04\xe2\x29\x12\x70\x11\x01\x00";
    [&start[..], &[0; 67], end].concat()
}

fn encoded() -> Vec<Case> {
    let json = "application/json";
    let coded =
        |coding: &str, body: &[u8]| typed(json, &format!("Content-Encoding: {coding}\r\n"), body);
    let (cut, corrupt) = (&GZIP[..GZIP.len() - 6], GZIP.iter().rev().copied().collect::<Vec<_>>());
    let bodies: [(&str, &[u8]); 7] = [
        ("gzip", b"{\"amount\":1}"),
        ("gzip", cut),
        ("gzip", &corrupt),
        ("gzip", &[GZIP, b"and more"].concat()),
        ("deflate", b"{\"amount\":1}"),
        ("deflate", b"\x78\x9c\xab\x56"),
        ("identity", GZIP),
    ];
    let mut cases: Vec<Case> = bodies
        .iter()
        .map(|(coding, body)| Case::problem(Problem::BodyMalformed, coded(coding, body)))
        .collect();
    cases.push(Case::problem(Problem::BodyTooLarge, coded("gzip", &bomb())));
    // Members that cost more time than their bytes.
    cases.push(Case::problem(Problem::BodyTooLarge, coded("gzip", &GZIP.repeat(129))));
    cases
}

pub(crate) fn cases() -> Vec<Case> {
    let malformed = |bytes: Vec<u8>| Case::problem(Problem::BodyMalformed, bytes);
    let mut cases: Vec<Case> =
        NOT_JSON.iter().map(|body| malformed(charge("bodies", body))).collect();
    let json = |body: &[u8]| typed("application/json", "", body);
    cases.push(malformed(json(b"\"\xff\"")));
    cases.push(malformed(json(b"\"\xc3\"")));
    cases.push(malformed(json(b"\"\xed\xa0\x80\"")));
    cases.push(malformed(json(b"\xff\xfe1\x00")));
    cases.push(malformed(json("[".repeat(129).as_bytes())));
    cases.push(malformed(json([("[").repeat(129), "]".repeat(129)].concat().as_bytes())));
    cases.push(malformed(json([r#"{"a":"#.repeat(9000), "}".repeat(9000)].concat().as_bytes())));
    cases.push(malformed(typed("application/problem+json; charset=utf-8", "", b"{")));
    cases.push(malformed(typed("multipart/form-data", "", b"--x--")));
    cases.push(malformed(typed("multipart/form-data; boundary=x", "", b"no parts")));
    cases.push(malformed(typed("multipart/form-data; boundary=x", "", b"--x\r\n\r\nopen")));
    cases.extend(encoded());
    for (problem, body) in HOOKS {
        let length = body.len();
        let head = "POST /hooks HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n";
        let request = format!("{head}Content-Length: {length}\r\n\r\n{body}");
        cases.push(Case::problem(*problem, request));
    }
    let brotli = "POST /hooks HTTP/1.1\r\nHost: a\r\nContent-Encoding: br\r\nContent-Length: 2\r\n";
    cases.push(malformed(format!("{brotli}\r\n{{}}").into_bytes()));
    let declared = "POST /charges HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer opaque\r\n\
                    Idempotency-Key: bodies\r\nContent-Length: 65537\r\n\r\n";
    cases.push(Case::problem(Problem::BodyTooLarge, declared));
    cases.push(malformed(declared.replace("65537", "5").into_bytes()).then_nothing());
    cases
}
