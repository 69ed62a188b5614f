//! The rules for the head of a request, one by one.

use proptest::prelude::*;

use super::*;

const BOUNDS: Bounds = Bounds { bytes: 1024, fields: 10 };

fn taken(text: &str) -> Result<Option<Asked>, u16> {
    let mut input = BytesMut::from(text);
    take(&mut input, BOUNDS).map_err(|(status, _)| status.as_u16())
}

/// The head of a POST with these lines.
fn asked(lines: &str) -> Result<Asked, u16> {
    taken(&format!("POST /charges HTTP/1.1\r\nHost: a\r\n{lines}\r\n")).map(Option::unwrap)
}

#[test]
fn a_head_is_taken_when_it_is_whole_and_what_follows_stays() {
    let whole = "\r\nPATCH /a?b=c HTTP/1.0\r\nHost: a\r\nX-A: 1\r\nx-a: 2\r\n\r\n";
    for end in 0..whole.len() {
        assert!(taken(&whole[..end]).unwrap().is_none(), "{end}");
    }
    let mut input = BytesMut::from(&*format!("{whole}GET /"));
    let asked = take(&mut input, BOUNDS).unwrap().unwrap();
    assert_eq!(&input[..], b"GET /");
    assert_eq!((asked.parts.method, asked.parts.version), (Method::PATCH, Version::HTTP_10));
    assert_eq!(asked.parts.uri, "/a?b=c");
    let values: Vec<_> = asked.parts.headers.get_all("x-a").iter().collect();
    assert_eq!(values, ["1", "2"]);
}

#[test]
fn a_head_beyond_its_bounds_is_refused() {
    assert_eq!(asked(&"X: y\r\n".repeat(10)).unwrap_err(), 431);
    assert!(asked(&"X: y\r\n".repeat(9)).is_ok());
    assert_eq!(asked(&format!("X: {}\r\n", "y".repeat(1024))).unwrap_err(), 431);
    assert_eq!(taken(&format!("GET /{}", "x".repeat(1024))).unwrap_err(), 431);
    assert_eq!(taken(&"\r\n".repeat(512)).unwrap_err(), 431, "nothing, for ever");
    let mut input = BytesMut::from(&*format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(70_000)));
    let bounds = Bounds { bytes: 100_000, fields: 200 };
    assert_eq!(take(&mut input, bounds).unwrap_err().0, StatusCode::URI_TOO_LONG);
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(200));
    assert!(take(&mut BytesMut::from(&*many), bounds).unwrap().is_some());
}

#[test]
fn a_body_ends_where_its_head_says() {
    for (lines, body) in [
        ("", Decoder::Done),
        ("Content-Length: 0\r\n", Decoder::Done),
        ("Content-Length: 5\r\n", Decoder::Length(5)),
        ("Content-Length: 5\r\nContent-Length: 005\r\n", Decoder::Length(5)),
        ("Transfer-Encoding: chunked\r\n", Decoder::chunked()),
        ("Transfer-Encoding: \tCHUNKED \r\n", Decoder::chunked()),
    ] {
        assert_eq!(asked(lines).unwrap().body, body, "{lines}");
    }
}

#[test]
fn a_length_is_passed_on_once_and_as_everybody_says_it() {
    for lines in ["Content-Length: 5\r\nContent-Length: 005\r\n", "Content-Length: 05\r\n"] {
        let headers = asked(lines).unwrap().parts.headers;
        let lengths: Vec<_> = headers.get_all(header::CONTENT_LENGTH).iter().collect();
        assert_eq!(lengths, ["5"], "{lines}");
    }
}

#[test]
fn a_head_of_two_opinions_is_refused() {
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
        assert_eq!(asked(lines).unwrap_err(), 400, "{lines}");
    }
    let old = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(taken(old).unwrap_err(), 400);
}

#[test]
fn a_head_says_what_is_to_become_of_its_connection() {
    let keeps = |text: &str| taken(&format!("GET / HTTP/{text}\r\n\r\n")).unwrap().unwrap().keeps;
    assert!(keeps("1.1"));
    assert!(!keeps("1.1\r\nConnection: x, Close"));
    assert!(!keeps("1.0"));
    assert!(keeps("1.0\r\nConnection: Keep-Alive"));
    assert!(!keeps("1.0\r\nConnection: keep-alive\r\nConnection: close"));
    let expects = |lines: &str| asked(&format!("Expect: 100-Continue\r\n{lines}")).unwrap().expects;
    assert!(expects("Content-Length: 5\r\n"));
    assert!(expects("Transfer-Encoding: chunked\r\n"));
    assert!(!expects("Content-Length: 0\r\n"), "there is nothing to wait for");
    assert!(asked("Upgrade: websocket\r\n").unwrap().upgrades);
    assert!(asked("TE: gzip, Trailers\r\n").unwrap().trailers);
}

proptest! {
    /// Whatever comes, in whatever pieces: no panic, and the same verdict.
    #[test]
    fn a_head_is_the_same_in_any_pieces(
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
        let verdict = |taken: Result<Option<Asked>, Wrong>| match taken {
            Ok(Some(asked)) => Some(Ok(asked.body)),
            Ok(None) => None,
            Err((status, _)) => Some(Err(status)),
        };
        let whole = verdict(take(&mut BytesMut::from(&*text), BOUNDS));
        let mut input = BytesMut::new();
        let pieces = text.iter().find_map(|byte| {
            input.extend_from_slice(&[*byte]);
            verdict(take(&mut input, BOUNDS))
        });
        prop_assert_eq!(whole, pieces);
    }
}
