//! Keys that cannot be parsed, and callers that cannot be identified.

use semel::core::Problem;

use crate::harness::Case;

fn request(path: &str, lines: &[u8]) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n");
    [head.as_bytes(), lines, b"\r\n\r\nhi"].concat()
}

fn keys() -> Vec<Vec<u8>> {
    let long = "x".repeat(256);
    let lines = [
        "Idempotency-Key:",
        "Idempotency-Key: \t ",
        "Idempotency-Key: \"\"",
        "Idempotency-Key: a b",
        "Idempotency-Key: a\tb",
        "Idempotency-Key: a,b",
        "Idempotency-Key: a, b",
        "Idempotency-Key: ,",
        "Idempotency-Key: \"a\", \"b\"",
        "Idempotency-Key: \"a",
        "Idempotency-Key: a\"",
        "Idempotency-Key: \"",
        "Idempotency-Key: a\"b",
        "Idempotency-Key: \"a\"b",
        "Idempotency-Key: \"a\" \"b\"",
        "Idempotency-Key: \"a b\"",
        "Idempotency-Key: \"a\\b\"",
        "Idempotency-Key: \"a\\\"",
        "Idempotency-Key: \"a\";",
        "Idempotency-Key: \"a\";B=1",
        "Idempotency-Key: \u{e9}",
        "Idempotency-Key: \"\u{e9}\"",
        "Idempotency-Key: a\u{a0}b",
        "Idempotency-Key: \u{1f512}",
        "Idempotency-Key: a\r\nIdempotency-Key: a",
        "Idempotency-Key: a\r\nX: y\r\nidempotency-key: b",
        "Idempotency-Key:\r\nIdempotency-Key: a",
    ];
    let mut lines: Vec<Vec<u8>> = lines.iter().map(|line| line.as_bytes().to_vec()).collect();
    lines.push(format!("Idempotency-Key: {long}").into_bytes());
    lines.push(format!("Idempotency-Key: \"{long}\"").into_bytes());
    lines.push(b"Idempotency-Key: \xff".to_vec());
    lines.push(b"Idempotency-Key: a\x80".to_vec());
    lines
}

/// Requests without a usable credential, on a route that identifies callers by it.
const CALLERS: &[&str] = &[
    "X: y",
    "Authorization:",
    "Authorization: Bearer",
    "Authorization: opaque",
    "Authorization: Digest username=\"a\"",
    "Authorization: Negotiate YWJj",
    "Authorization: AWS4-HMAC-SHA256 Credential=a, Signature=b",
    "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
    "Authorization: Bearer v4.public.eyJzdWIiOiIxIn0",
    "Authorization: Bearer a\r\nAuthorization: Bearer a",
    "Authorization: Bearer a\r\nAuthorization: Bearer b",
    "Cookie: session=a",
];

/// Requests with credentials, on a route for anonymous callers only.
const NOT_ANONYMOUS: &[&str] =
    &["Authorization: Bearer opaque", "Cookie: session=a", "X-Api-Key: a", "X-Auth-Token: a"];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for line in keys() {
        let credential = [b"Authorization: Bearer opaque\r\n", &*line].concat();
        cases.push(Case::problem(Problem::KeyMalformed, request("/charges", &credential)));
        cases.push(Case::problem(Problem::KeyMalformed, request("/optional", &line)));
    }
    let missing = request("/charges", b"Authorization: Bearer opaque");
    cases.push(Case::problem(Problem::KeyMissing, missing));
    let misnamed = request("/charges", b"Authorization: Bearer opaque\r\nIdempotency_Key: a");
    cases.push(Case::problem(Problem::KeyMissing, misnamed));
    for lines in CALLERS {
        let lines = format!("Idempotency-Key: a\r\n{lines}");
        let request = request("/charges", lines.as_bytes());
        cases.push(Case::problem(Problem::CallerUnidentified, request));
    }
    for line in NOT_ANONYMOUS {
        let lines = format!("Idempotency-Key: a\r\n{line}");
        let request = request("/optional", lines.as_bytes());
        cases.push(Case::problem(Problem::CallerUnidentified, request));
    }
    let in_query = request("/optional?access_token=a", b"Idempotency-Key: a");
    cases.push(Case::problem(Problem::CallerUnidentified, in_query));
    cases
}
