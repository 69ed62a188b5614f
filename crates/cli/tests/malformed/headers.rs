//! Header lines that are none, hosts that are none or several, and more than is allowed of them.

use crate::harness::Case;

const LINES: &[&str] = &[
    ": y",
    "x",
    "x y: z",
    "x : y",
    "x\t: y",
    " x: y",
    "\tx: y",
    "x\0: y",
    "x\u{7f}: y",
    "\u{e9}: y",
    "x(y): z",
    "x/y: z",
    "x[y]: z",
    "x{y}: z",
    "x@y: z",
    "x=y: z",
    "\"x\": y",
    "x,y: z",
    "x;y: z",
    "x\\y: z",
    "x: \0",
    "x: y\0",
    "x: \u{1}",
    "x: \u{8}",
    "x: \u{b}",
    "x: \u{c}",
    "x: \u{1b}[0m",
    "x: \u{7f}",
    "x: y\rz: w",
    "x: \ry",
    "x: y\r\n folded",
    "x: y\n\tfolded",
    "x:\r\n y",
    "\rx: y",
];

/// Requests without one good host.
const HOSTS: &[&str] = &[
    "X: y",
    "Host: a\r\nHost: a",
    "Host: a\r\nHost: b",
    "host: a\r\nHOST: b",
    "Host: a b",
    "Host: a, b",
    "Host: a/b",
    "Host: a?b",
    "Host: a#b",
    "Host: http://a",
    "Host: user@a",
    "Host: user:password@a",
    "Host: a:port",
    "Host: a:80:80",
    "Host: [::1",
    "Host: a\\b",
    "Host: <a>",
    "Host: \u{e9}",
];

pub(crate) fn cases() -> Vec<Case> {
    let request = |lines: &str| format!("GET /refused HTTP/1.1\r\n{lines}\r\n\r\n");
    let with_host = |line: &&str| Case::status(400, request(&format!("Host: a\r\n{line}")));
    let mut cases: Vec<Case> = LINES.iter().map(with_host).collect();
    cases.extend(HOSTS.iter().map(|line| Case::status(400, request(line))));
    cases.push(Case::status(400, request("Host: a\r\nx: y").replacen("x: y", "x: y\r\n:", 1)));
    let large = [
        format!("X: {}", "y".repeat(17 << 10)),
        format!("{}: y", "x".repeat(17 << 10)),
        format!("X: {}", " ".repeat(17 << 10)),
        (0..17).map(|n| format!("X{n}: {}", "y".repeat(1 << 10))).collect::<Vec<_>>().join("\r\n"),
        ["X: y"; 50].join("\r\n"),
        ["X: y"; 500].join("\r\n"),
        format!("Cookie: {}", "a=b; ".repeat(4 << 10)),
    ];
    cases.extend(
        large.iter().map(|lines| Case::status(431, request(&format!("Host: a\r\n{lines}")))),
    );
    cases
}
