//! Request lines that are none: versions, methods and targets.

use crate::harness::Case;

const LINES: &[&str] = &[
    // Versions.
    "GET /",
    "GET / ",
    "GET / HTTP",
    "GET / HTTP/",
    "GET / HTTP/1",
    "GET / HTTP/1.",
    "GET / HTTP/0.9",
    "GET / HTTP/1.2",
    "GET / HTTP/1.10",
    "GET / HTTP/2.0",
    "GET / HTTP/3",
    "GET / HTTP/01.1",
    "GET / HTTP/1,1",
    "GET / http/1.1",
    "GET / HTTPS/1.1",
    "GET / HTTP/1.1 ",
    "GET / HTTP/1.1x",
    "GET / HTTP/1.1\rX: y",
    "GET / HTTP /1.1",
    "GET / RTSP/1.0",
    "PRI * HTTP/2.0",
    // Spaces.
    " GET / HTTP/1.1",
    "\tGET / HTTP/1.1",
    "GET  / HTTP/1.1",
    "GET /  HTTP/1.1",
    "GET\t/ HTTP/1.1",
    "GET /\tHTTP/1.1",
    "GET /a b HTTP/1.1",
    "GET HTTP/1.1",
    "GET",
    " ",
    // Methods.
    "/ HTTP/1.1",
    "G@T / HTTP/1.1",
    "G(T / HTTP/1.1",
    "G\u{c9}T / HTTP/1.1",
    "G\0T / HTTP/1.1",
    "G\rT / HTTP/1.1",
    "\"GET\" / HTTP/1.1",
    "GET, / HTTP/1.1",
    "GET: / HTTP/1.1",
    // Targets.
    "GET /\0 HTTP/1.1",
    "GET /\u{7f} HTTP/1.1",
    "GET /\u{1} HTTP/1.1",
    "GET /caf\u{e9} HTTP/1.1",
    "GET /good?caf\u{e9} HTTP/1.1",
    "GET http://a/caf\u{e9} HTTP/1.1",
    "GET /\r/ HTTP/1.1",
    "GET /<script> HTTP/1.1",
    "GET example.com HTTP/1.1",
    "GET example.com:80 HTTP/1.1",
    "POST charges HTTP/1.1",
    "GET charges/1 HTTP/1.1",
    "GET ?x=y HTTP/1.1",
    "GET #x HTTP/1.1",
    "GET * HTTP/1.1",
    "POST * HTTP/1.1",
    "OPTIONS ** HTTP/1.1",
    "GET http:// HTTP/1.1",
    "GET http:///good HTTP/1.1",
    "GET http:/good HTTP/1.1",
    "GET :///good HTTP/1.1",
    "GET ://a/good HTTP/1.1",
    "GET http://a:port/good HTTP/1.1",
    "GET http://[::1/good HTTP/1.1",
    "GET http://user:password@a/good HTTP/1.1",
    "GET ftp://a/good HTTP/1.1",
];

/// A request for a tunnel gets an error.
const TUNNELS: &[&str] = &[
    "CONNECT example.com:443 HTTP/1.1",
    "CONNECT a HTTP/1.1",
    "CONNECT /good HTTP/1.1",
    "CONNECT http://a/good HTTP/1.1",
];

/// What comes back of a TRACE is what the gateway has added for the upstream alone.
const TRACES: &[&str] =
    &["TRACE / HTTP/1.1", "TRACE /charges HTTP/1.1", "TRACE http://a/good HTTP/1.1"];

pub(crate) fn cases() -> Vec<Case> {
    let request = |line: &str| format!("{line}\r\nHost: a\r\n\r\n");
    let mut cases: Vec<Case> = LINES.iter().map(|line| Case::status(400, request(line))).collect();
    cases.extend(TUNNELS.iter().chain(TRACES).map(|line| Case::status(405, request(line))));
    cases.push(Case::status(400, b"GET /\x80\xff HTTP/1.1\r\nHost: a\r\n\r\n"));
    cases.push(Case::status(400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"));
    cases.push(Case::status(400, b"\x00\x00\x00\x00\r\n\r\n"));
    cases.push(Case::status(400, b"\r\rGET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    // Where one reader sees an end of line, and another does not.
    for bare in [
        "GET / HTTP/1.1\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: y\n\nGET /good HTTP/1.1\nHost: a\n\n",
        "POST /good HTTP/1.1\r\nHost: a\r\nX: y\nContent-Length: 3\r\n\r\nabc",
        "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\n\n",
    ] {
        cases.push(Case::status(400, bare));
    }
    let long = "x".repeat(17 << 10);
    cases.push(Case::status(431, request(&format!("GET /{long} HTTP/1.1"))));
    cases.push(Case::status(431, request(&format!("GET /?{long} HTTP/1.1"))));
    cases.push(Case::status(431, request(&format!("{long} / HTTP/1.1"))));
    cases
}
