//! Framing rules: where a head ends, and where its body ends.

use bytes::BytesMut;
use http::{Method, StatusCode, Version, header};

use crate::Http1Error;
use crate::client::parse;
use crate::client::parse::{HeadParser, ResponseHead};
use crate::decode::Decoder;

fn take(text: &str, method: &Method) -> Result<Option<ResponseHead>, Http1Error> {
    let mut input = BytesMut::from(text);
    let head = parse::take_head(&mut input, method)?;
    assert!(head.is_none() || input.is_empty(), "{input:?} is left");
    Ok(head)
}

/// The head of a response to a POST with these fields.
fn head(lines: &str) -> ResponseHead {
    take(&format!("HTTP/1.1 200 OK\r\n{lines}\r\n"), &Method::POST).unwrap().unwrap()
}

fn is_refused(lines: &str) -> bool {
    let head = take(&format!("HTTP/1.1 200 OK\r\n{lines}\r\n"), &Method::POST);
    matches!(head, Err(Http1Error::Malformed(_)))
}

#[test]
fn a_head_is_taken_when_it_is_complete() {
    let whole = "HTTP/1.0 404 Nowhere\r\nX-A: 1\r\nx-a: 2\r\n\r\n";
    for end in 0..whole.len() {
        assert!(take(&whole[..end], &Method::GET).unwrap().is_none(), "{end}");
    }
    let head = take(whole, &Method::GET).unwrap().unwrap();
    assert_eq!((head.parts.status.as_u16(), head.parts.version), (404, Version::HTTP_10));
    let values: Vec<_> = head.parts.headers.get_all("x-a").iter().collect();
    assert_eq!(values, ["1", "2"]);
    let reason = head.parts.extensions.get::<hyper::ext::ReasonPhrase>().unwrap();
    assert_eq!(reason.as_bytes(), b"Nowhere");
}

#[test]
fn input_after_a_head_stays() {
    let mut input = BytesMut::from("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let head = parse::take_head(&mut input, &Method::GET).unwrap().unwrap();
    assert_eq!((head.body, &input[..]), (Decoder::Length(2), &b"ok"[..]));
}

#[test]
fn an_invalid_head_is_refused() {
    for text in ["SSH-2.0-x\r\n", "HTTP/2.0 200 OK\r\n\r\n", "HTTP/1.1 20x OK\r\n\r\n", "\0"] {
        assert!(matches!(take(text, &Method::GET), Err(Http1Error::Malformed(_))), "{text}");
    }
}

#[test]
fn a_line_that_ends_with_lf_alone_is_refused() {
    assert!(is_refused("X: a\nSet-Cookie: evil=1\r\n"), "between fields");
    assert!(is_refused("X: a\n b\r\n"), "in a folded field");
    assert!(is_refused("X y\nZ: a\r\n"), "in an invalid line");
    for text in ["HTTP/1.1 200 OK\nX: a\r\n\r\n", "HTTP/1.1 200 OK\r\nX: a\n\n"] {
        assert!(matches!(take(text, &Method::GET), Err(Http1Error::Malformed(_))), "{text}");
    }
}

#[test]
fn a_head_that_is_too_long_is_refused() {
    assert!(is_refused(&"X: y\r\n".repeat(101)), "too many fields");
    let long = format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(500_000));
    assert!(matches!(take(&long, &Method::GET), Err(Http1Error::Malformed(_))), "without an end");
    assert!(is_refused(&format!("X: {}\r\n", "y".repeat(500_000))));
}

#[test]
fn an_invalid_line_is_skipped() {
    let head = head("what is this\r\nBad Name: 1\r\nX-A: 1\r\n");
    assert_eq!(head.parts.headers.len(), 1);
}

#[test]
fn whitespace_before_a_colon_is_not_part_of_the_name() {
    let head = head("Transfer-Encoding : chunked\r\nX-A \t: 1\r\n");
    assert_eq!((head.body, head.keep_alive), (Decoder::chunked(), true));
    assert_eq!(head.parts.headers["x-a"], "1");
}

#[test]
fn an_invalid_framing_header_is_not_skipped() {
    for line in ["Content-Length: 5\u{1}", "content-length", "Transfer-Encoding\u{1}: chunked"] {
        for beside in ["", "Content-Length: 3\r\n"] {
            let text = format!("HTTP/1.1 200 OK\r\n{line}\r\n{beside}\r\n");
            let taken = parse::take_head(&mut BytesMut::from(&*text), &Method::POST);
            assert!(matches!(taken, Err(Http1Error::Malformed(_))), "{text}: {taken:?}");
        }
    }
    let head = head("what is this\r\nContent-Length-Of-Old: 7\r\nContent-Length: 3\r\n");
    assert_eq!(head.body, Decoder::Length(3));
}

#[test]
fn a_folded_field_is_unfolded() {
    let head = head("X-A: one\r\n two\r\n\tthree\r\nContent-Length:\r\n 3\r\nX-B: 4\r\n");
    let value = head.parts.headers["x-a"].to_str().unwrap();
    assert_eq!(value.split_whitespace().collect::<Vec<_>>(), ["one", "two", "three"]);
    assert_eq!(
        (head.body, &head.parts.headers["x-b"]),
        (Decoder::Length(3), &"4".parse().unwrap())
    );
}

#[test]
fn a_body_ends_as_its_head_says() {
    assert_eq!(head("Content-Length: 5\r\n").body, Decoder::Length(5));
    assert_eq!(head("Content-Length: 0\r\n").body, Decoder::Done);
    assert_eq!(head("Transfer-Encoding: Chunked\r\n").body, Decoder::chunked());
    assert_eq!(head("").body, Decoder::UntilClose);
}

#[test]
fn a_repeated_length_is_passed_on_once() {
    for (lines, body, length) in [
        ("Content-Length: 5\r\nContent-Length: 5\r\n", Decoder::Length(5), "5"),
        ("Content-Length: 5, 5\r\n", Decoder::Length(5), "5"),
        ("Content-Length: 5,5\r\nContent-Length: 05\r\n", Decoder::Length(5), "5"),
        ("Content-Length: 0, 0\r\n", Decoder::Done, "0"),
    ] {
        let head = head(lines);
        let lengths: Vec<_> = head.parts.headers.get_all(header::CONTENT_LENGTH).iter().collect();
        assert_eq!((head.body, head.keep_alive), (body, true), "{lines}");
        assert_eq!(lengths, [length], "{lines}");
    }
}

#[test]
fn a_head_with_ambiguous_framing_is_refused() {
    for lines in [
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5, 6\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length:\r\n",
        "Content-Length: 99999999999999999999\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked, gzip\r\n",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked,\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding:\r\n",
    ] {
        assert!(is_refused(lines), "{lines}");
    }
    let old = "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert!(matches!(take(old, &Method::GET), Err(Http1Error::Malformed(_))));
}

#[test]
fn chunked_overrides_a_length_and_the_connection_is_not_reused() {
    for length in ["5", "5, 6", "-5", "five", ""] {
        let head = head(&format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"));
        assert_eq!((head.body, head.keep_alive), (Decoder::chunked(), false), "{length}");
    }
}

#[test]
fn chunked_twice_counts_once_and_the_connection_is_not_reused() {
    for lines in [
        "Transfer-Encoding: chunked, Chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    ] {
        let head = head(lines);
        assert_eq!((head.body, head.keep_alive), (Decoder::chunked(), false), "{lines}");
    }
    assert!(head("Transfer-Encoding: chunked\r\n").keep_alive);
}

#[test]
fn some_responses_have_no_body_despite_their_headers() {
    let keep_alive = |method, status, line| {
        let text = format!("HTTP/1.1 {status} X\r\n{line}\r\n");
        let head = take(&text, &method).unwrap().unwrap();
        assert_eq!(head.body, Decoder::Done, "{status} {line}");
        head.keep_alive
    };
    for line in ["", "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n"] {
        for status in [100, 101, 304] {
            assert!(keep_alive(Method::GET, status, line), "{status} {line}");
        }
        assert!(keep_alive(Method::HEAD, 200, line), "{line}");
        // A 204 that announces a body may send one.
        assert_eq!(keep_alive(Method::GET, 204, line), line.is_empty(), "{line}");
    }
    assert!(keep_alive(Method::GET, 204, "Content-Length: 0\r\n"));
    assert!(!keep_alive(Method::GET, 204, "Content-Length: none\r\n"));
}

#[test]
fn interim_responses_are_skipped_until_there_are_too_many() {
    let interim = "HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n";
    let response = "HTTP/1.1 204 No Content\r\n\r\n";
    let mut input = BytesMut::from(&*[&interim.repeat(100), response].concat());
    let head = HeadParser::default().next(&mut input, &Method::GET).unwrap().unwrap();
    assert_eq!((head.parts.status, input.len()), (StatusCode::NO_CONTENT, 0));
    let (mut parser, mut input) = (HeadParser::default(), BytesMut::new());
    for count in 1..=101 {
        input.extend_from_slice(interim.as_bytes());
        let found = parser.next(&mut input, &Method::GET);
        assert_eq!(matches!(found, Err(Http1Error::Malformed(_))), count > 100, "{count}");
    }
}

#[test]
fn a_head_without_a_line_end_is_refused_when_it_is_too_long() {
    let (mut parser, mut input) = (HeadParser::default(), BytesMut::new());
    let refused = (0..500).find(|_| {
        input.extend_from_slice(&[b'H'; 1024]);
        parser.next(&mut input, &Method::GET).is_err()
    });
    assert_eq!(refused, Some(400), "in KiB");
}

#[test]
fn a_connection_is_kept_alive_if_the_response_allows_it() {
    let keep_alive = |text: &str| {
        let text = format!("HTTP/{text}\r\nContent-Length: 0\r\n\r\n");
        take(&text, &Method::GET).unwrap().unwrap().keep_alive
    };
    assert!(keep_alive("1.1 200 OK"));
    assert!(keep_alive("1.1 200 OK\r\nConnection: keep-alive"));
    assert!(!keep_alive("1.1 200 OK\r\nConnection: x, Close"));
    assert!(!keep_alive("1.0 200 OK"));
    assert!(keep_alive("1.0 200 OK\r\nConnection: Keep-Alive"));
    assert!(!keep_alive("1.0 200 OK\r\nConnection: keep-alive\r\nConnection: close"));
    assert!(!head("").keep_alive, "the body ends with the connection");
}

/// Decodes a body that arrives in pieces of this size: data, number of trailers, remaining input.
fn read(
    mut body: Decoder,
    text: &str,
    piece: usize,
) -> Result<(String, usize, String), Http1Error> {
    let (mut input, mut data, mut trailers) = (BytesMut::new(), Vec::new(), 0);
    for piece in text.as_bytes().chunks(piece) {
        input.extend_from_slice(piece);
        while let Some(frame) = body.next(&mut input)? {
            match frame.into_data() {
                Ok(bytes) => data.extend_from_slice(&bytes),
                Err(frame) => trailers += frame.into_trailers().unwrap().len(),
            }
        }
    }
    body.end()?;
    let remaining = String::from_utf8(input.to_vec()).unwrap();
    Ok((String::from_utf8(data).unwrap(), trailers, remaining))
}

#[test]
fn a_body_is_decoded_the_same_however_it_is_split() {
    let long = "x".repeat(5000);
    let chunked = format!("5;a=b\r\nhello\r\n1388 \r\n{long}\r\n0\r\nX-A: 1\r\nX-B: 2\r\n\r\nmore");
    for piece in [1, 2, 3, 7, 100, 10_000] {
        let (data, trailers, remaining) = read(Decoder::chunked(), &chunked, piece).unwrap();
        assert_eq!((data, trailers, &*remaining), (format!("hello{long}"), 2, "more"), "{piece}");
        let read = |body, text| read(body, text, piece).unwrap();
        assert_eq!(read(Decoder::chunked(), "0\r\n\r\n"), (String::new(), 0, String::new()));
        assert_eq!(read(Decoder::Length(3), "abcde"), ("abc".to_owned(), 0, "de".to_owned()));
        assert_eq!(read(Decoder::UntilClose, "abc"), ("abc".to_owned(), 0, String::new()));
        assert_eq!(read(Decoder::Done, "abc"), (String::new(), 0, "abc".to_owned()));
    }
}

#[test]
fn a_truncated_body_is_an_error() {
    let chunked = "5\r\nhello\r\n0\r\nX-A: 1\r\n\r\n";
    for end in 0..chunked.len() {
        let read = read(Decoder::chunked(), &chunked[..end], 3);
        assert!(matches!(read, Err(Http1Error::Closed)), "{end}");
    }
    assert!(matches!(read(Decoder::Length(3), "ab", 1), Err(Http1Error::Closed)));
}

#[test]
fn chunk_extensions_are_limited() {
    let chunk = format!("1;{}\r\nx\r\n", "e".repeat(999));
    assert!(read(Decoder::chunked(), &format!("{}0\r\n\r\n", chunk.repeat(16)), 100).is_ok());
    let more = read(Decoder::chunked(), &chunk.repeat(18), 100);
    assert!(matches!(more, Err(Http1Error::Malformed(_))), "{more:?}");
    // Short extensions are free, however many there are.
    for chunk in ["1       \r\nx\r\n", "1;at=12345678\r\nx\r\n"] {
        let many = format!("{}0\r\n\r\n", chunk.repeat(10_000));
        assert!(read(Decoder::chunked(), &many, 100).is_ok(), "{chunk:?}");
    }
}

#[test]
fn an_invalid_chunk_is_refused() {
    let line = format!("5;{}\r\nhello\r\n", "x".repeat(5000));
    let trailers = format!("0\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    for text in [
        "\r\n",
        "g\r\n",
        "-5\r\nhello\r\n",
        "0x5\r\nhello\r\n",
        " 5\r\nhello\r\n",
        "5\u{c}\r\nhello\r\n",
        "5;a\rb\r\nhello\r\n",
        "5 5\r\nhello\r\n",
        "5\nhello\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "11111111111111111\r\n",
        "0\r\nbad name: 1\r\n\r\n",
        "0\r\nX-A: 1\n\r\n",
        "0\r\nX-A: 1\r\n\n",
        &line,
        &trailers,
    ] {
        for piece in [1, 100_000] {
            let read = read(Decoder::chunked(), text, piece);
            assert!(matches!(read, Err(Http1Error::Malformed(_))), "{text}: {read:?}");
        }
    }
}
