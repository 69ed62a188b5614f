//! Parsing rules for request heads.

use proptest::prelude::*;

use super::*;

const LIMITS: HeadLimits = HeadLimits { bytes: 1024, fields: 10 };

fn taken(text: &str) -> Result<Option<RequestHead>, u16> {
    let mut input = BytesMut::from(text);
    take_head(&mut input, LIMITS).map_err(|(status, _)| status.as_u16())
}

/// The head of a POST with these fields.
fn head(lines: &str) -> Result<RequestHead, u16> {
    taken(&format!("POST /charges HTTP/1.1\r\nHost: a\r\n{lines}\r\n")).map(Option::unwrap)
}

#[test]
fn a_head_is_taken_when_it_is_complete_and_the_input_after_it_stays() {
    let whole = "\r\nPATCH /a?b=c HTTP/1.0\r\nHost: a\r\nX-A: 1\r\nx-a: 2\r\n\r\n";
    for end in 0..whole.len() {
        assert!(taken(&whole[..end]).unwrap().is_none(), "{end}");
    }
    let mut input = BytesMut::from(&*format!("{whole}GET /"));
    let head = take_head(&mut input, LIMITS).unwrap().unwrap();
    assert_eq!(&input[..], b"GET /");
    assert_eq!((head.parts.method, head.parts.version), (Method::PATCH, Version::HTTP_10));
    assert_eq!(head.parts.uri, "/a?b=c");
    let values: Vec<_> = head.parts.headers.get_all("x-a").iter().collect();
    assert_eq!(values, ["1", "2"]);
}

#[test]
fn a_head_above_its_limits_is_refused() {
    assert_eq!(head(&"X: y\r\n".repeat(10)).unwrap_err(), 431);
    assert!(head(&"X: y\r\n".repeat(9)).is_ok());
    assert_eq!(head(&format!("X: {}\r\n", "y".repeat(1024))).unwrap_err(), 431);
    assert_eq!(taken(&format!("GET /{}", "x".repeat(1024))).unwrap_err(), 431);
    assert_eq!(taken(&"\r\n".repeat(512)).unwrap_err(), 431, "only empty lines");
    let mut input = BytesMut::from(&*format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(70_000)));
    let limits = HeadLimits { bytes: 100_000, fields: 200 };
    assert_eq!(take_head(&mut input, limits).unwrap_err().0, StatusCode::URI_TOO_LONG);
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(200));
    assert!(take_head(&mut BytesMut::from(&*many), limits).unwrap().is_some());
}

#[test]
fn a_body_ends_as_its_head_says() {
    for (lines, body) in [
        ("", Decoder::Done),
        ("Content-Length: 0\r\n", Decoder::Done),
        ("Content-Length: 5\r\n", Decoder::Length(5)),
        ("Content-Length: 5\r\nContent-Length: 005\r\n", Decoder::Length(5)),
        ("Transfer-Encoding: chunked\r\n", Decoder::chunked()),
        ("Transfer-Encoding: \tCHUNKED \r\n", Decoder::chunked()),
    ] {
        assert_eq!(head(lines).unwrap().body, body, "{lines}");
    }
}

#[test]
fn a_length_is_passed_on_once_in_its_canonical_form() {
    for lines in ["Content-Length: 5\r\nContent-Length: 005\r\n", "Content-Length: 05\r\n"] {
        let headers = head(lines).unwrap().parts.headers;
        let lengths: Vec<_> = headers.get_all(header::CONTENT_LENGTH).iter().collect();
        assert_eq!(lengths, ["5"], "{lines}");
    }
}

#[test]
fn a_head_with_ambiguous_framing_is_refused() {
    for lines in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length:\r\n",
        "Content-Length: 18446744073709551616\r\n",
        "Content-Length : 5\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding:\r\n",
        "X: y\r\n Content-Length: 5\r\n",
    ] {
        assert_eq!(head(lines).unwrap_err(), 400, "{lines}");
    }
    let old = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(taken(old).unwrap_err(), 400);
}

#[test]
fn connection_options_are_read_from_the_head() {
    let keep_alive =
        |text: &str| taken(&format!("GET / HTTP/{text}\r\n\r\n")).unwrap().unwrap().keep_alive;
    assert!(keep_alive("1.1"));
    assert!(!keep_alive("1.1\r\nConnection: x, Close"));
    assert!(!keep_alive("1.0"));
    assert!(keep_alive("1.0\r\nConnection: Keep-Alive"));
    assert!(!keep_alive("1.0\r\nConnection: keep-alive\r\nConnection: close"));
    let expect_continue =
        |lines: &str| head(&format!("Expect: 100-Continue\r\n{lines}")).unwrap().expect_continue;
    assert!(expect_continue("Content-Length: 5\r\n"));
    assert!(expect_continue("Transfer-Encoding: chunked\r\n"));
    assert!(!expect_continue("Content-Length: 0\r\n"), "there is no body to wait for");
    assert!(head("Upgrade: websocket\r\n").unwrap().wants_upgrade);
    assert!(head("TE: gzip, Trailers\r\n").unwrap().trailers);
}

proptest! {
    /// No input panics, and the result is the same however it is split.
    #[test]
    fn a_head_parses_the_same_however_it_is_split(
        bytes in proptest::collection::vec(
            prop_oneof![Just(b'\r'), Just(b'\n'), Just(b':'), Just(b' '), Just(b'5'), any::<u8>()],
            0..80,
        ),
        line in prop_oneof![
            Just("GET / HTTP/1.1\r\n"), Just("POST / HTTP/1.0\r\nContent-Length: "),
            Just("POST / HTTP/1.1\r\nTransfer-Encoding: "), Just(""),
        ],
    ) {
        let text = [line.as_bytes(), &bytes, b"\r\n\r\n"].concat();
        let verdict = |taken: Result<Option<RequestHead>, BadRequest>| match taken {
            Ok(Some(head)) => Some(Ok(head.body)),
            Ok(None) => None,
            Err((status, _)) => Some(Err(status)),
        };
        let whole = verdict(take_head(&mut BytesMut::from(&*text), LIMITS));
        let mut input = BytesMut::new();
        let pieces = text.iter().find_map(|byte| {
            input.extend_from_slice(&[*byte]);
            verdict(take_head(&mut input, LIMITS))
        });
        prop_assert_eq!(whole, pieces);
    }
}
