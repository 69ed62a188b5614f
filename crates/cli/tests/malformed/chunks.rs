//! Chunked bodies that are broken in the middle, on a route that reads them before anything is
//! done.

use semel::core::Problem;

use crate::harness::Case;

const HEAD: &str = "POST /charges HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer opaque\r\n\
                    Idempotency-Key: chunks\r\nTransfer-Encoding: chunked\r\n\r\n";

const BODIES: &[&str] = &[
    "\r\n",
    "\n",
    "zz\r\n",
    "-5\r\nhello\r\n0\r\n\r\n",
    "+5\r\nhello\r\n0\r\n\r\n",
    "0x5\r\nhello\r\n0\r\n\r\n",
    " 5\r\nhello\r\n0\r\n\r\n",
    "5\nhello\r\n0\r\n\r\n",
    "5\rhello\r\n0\r\n\r\n",
    "5 5\r\nhello\r\n0\r\n\r\n",
    "5,\r\nhello\r\n0\r\n\r\n",
    "5 x\r\nhello\r\n0\r\n\r\n",
    ";a=b\r\n",
    "5;a=b\nhello\r\n0\r\n\r\n",
    "5;a=b\rhello\r\n0\r\n\r\n",
    "5\r\nhello0\r\n\r\n",
    "5\r\nhello\n0\r\n\r\n",
    "5\r\nhello\r0\r\n\r\n",
    "4\r\nhello\r\n0\r\n\r\n",
    "5\r\nhello\r\n\r\n0\r\n\r\n",
    "fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    "10000000000000000\r\n",
    "\u{ff15}\r\nhello\r\n0\r\n\r\n",
    "0\r\nno colon\r\n\r\n",
    "0\r\n: no name\r\n\r\n",
    "0\r\nx y: z\r\n\r\n",
    "0\r\nx : z\r\n\r\n",
    "0\r\nx: \0\r\n\r\n",
    "0\r\nx: y\rz\r\n\r\n",
    "0\r\nx: y\r\n folded\r\n\r\n",
    "0\r\nx: y\n\r\n",
    "0\r\n\rX",
];

/// What ends before its time, if the client then sends no more.
const CUT: &[&str] =
    &["", "5", "5\r\n", "5\r\nhel", "5\r\nhello", "5\r\nhello\r\n", "0\r\n", "0\r\nx: y"];

/// The same on a route that passes a body on as it comes.
pub(crate) fn streamed() -> Vec<Case> {
    let head = "PUT /streamed HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let broken = |body: &&str| Case::problem(Problem::BodyMalformed, format!("{head}{body}"));
    let cut = CUT.iter().map(|body| broken(body).then_nothing());
    BODIES.iter().map(broken).chain(cut).collect()
}

pub(crate) fn cases() -> Vec<Case> {
    let broken = |body: &str| Case::problem(Problem::BodyMalformed, format!("{HEAD}{body}"));
    let mut cases: Vec<Case> = BODIES.iter().map(|body| broken(body)).collect();
    cases.extend(CUT.iter().map(|body| broken(body).then_nothing()));
    let extension = format!("1;{}\r\nx\r\n0\r\n\r\n", "e".repeat(17 << 10));
    let trailer = format!("0\r\nx: {}\r\n\r\n", "y".repeat(17 << 10));
    let trailers = format!("0\r\n{}\r\n", "x: y\r\n".repeat(51));
    cases.extend([extension, trailer, trailers].iter().map(|body| broken(body)));
    let large = format!("{HEAD}10001\r\n{}\r\n0\r\n\r\n", "x".repeat(0x1_0001));
    cases.push(Case::problem(Problem::BodyTooLarge, large));
    cases
}
