//! Where a request ends: lengths and codings that contradict, repeat or mean nothing.

use crate::harness::Case;

/// Would be served if the request before it were taken to have ended.
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";

const BOTH: &[&str] = &[
    "Content-Length: 5\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nContent-Length: 5",
    "Content-Length: 0\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nContent-Length: 0",
    "content-length:5\r\ntransfer-encoding:chunked",
    "CONTENT-LENGTH: 5\r\nX: y\r\nTRANSFER-ENCODING: CHUNKED",
    "tRANSFER-eNCODING:\tchunked \r\nX: y\r\ncONTENT-lENGTH: \t5",
    "Transfer-Encoding: chunked\r\nContent-Length: five",
    "Transfer-Encoding: chunked\r\nContent-Length:",
    "Content-Length: 5\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
    "Content-Length: 5\nTransfer-Encoding: chunked",
    "Content-Length: 5\r\nTransfer-Encoding: identity",
    "Content-Length: 5\r\nTransfer-Encoding: xchunked",
];

const LENGTHS: &[&str] = &[
    "Content-Length: 5\r\nContent-Length: 6",
    "Content-Length: 5\r\nX: y\r\ncontent-length: 50",
    "Content-Length: 5, 5",
    "Content-Length: 5,6",
    "Content-Length: +5",
    "Content-Length: -5",
    "Content-Length: 0x5",
    "Content-Length: 5 5",
    "Content-Length: 5;",
    "Content-Length: 5.0",
    "Content-Length: five",
    "Content-Length:",
    "Content-Length: \u{665}",
    "Content-Length: \"5\"",
    "Content-Length: 18446744073709551616",
    "Content-Length: 99999999999999999999999999999999999999",
    "Content-Length : 5",
    "Content-Length\t: 5",
    "Content-Length: 5\r\n 6",
    "Content-Length:\r\n\t5",
];

const CODINGS: &[&str] = &[
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: chunked, chunked",
    "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: gzip",
    "Transfer-Encoding: chunked;q=1",
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding: chunkedx",
    "Transfer-Encoding: chun ked",
    "Transfer-Encoding: chunked,",
    "Transfer-Encoding: ,chunked",
    "Transfer-Encoding: \"chunked\"",
    "Transfer-Encoding:",
    "Transfer-Encoding: \u{b}chunked",
    "Transfer-Encoding: chunked\u{a0}",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "Transfer-Encoding : chunked",
    "Transfer-Encoding\t: chunked",
    "Transfer-Encoding:\r\n chunked",
    "Transfer-Encoding: chunked\r\n , identity",
    " Transfer-Encoding: chunked",
];

/// Each on a guarded route and on one that passes.
pub(crate) fn cases() -> Vec<Case> {
    let guarded = "POST /charges HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer opaque\r\n\
                   Idempotency-Key: framing\r\n";
    let passing = "PUT /passing HTTP/1.1\r\nHost: a\r\n";
    let mut cases = Vec::new();
    for fields in [BOTH, LENGTHS, CODINGS].concat() {
        for head in [guarded, passing] {
            let request = format!("{head}{fields}\r\n\r\n0\r\n\r\n{HIDDEN}");
            cases.push(Case::status(400, request));
        }
    }
    let old = "POST /charges HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    cases.push(Case::status(400, old));
    cases
}
