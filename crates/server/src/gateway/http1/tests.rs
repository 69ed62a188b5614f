//! The rules of framing, one by one: where a head ends, what it says of the body, and where that
//! ends.

use bytes::BytesMut;
use http::{Method, StatusCode, Version, header};

use super::{
    Fault,
    decode::Decoder,
    head::{self, Head, Search},
};

fn take(text: &str, method: &Method) -> Result<Option<Head>, Fault> {
    let mut input = BytesMut::from(text);
    let head = head::take(&mut input, method)?;
    assert!(head.is_none() || input.is_empty(), "{input:?} is left");
    Ok(head)
}

/// The head of an answer to a POST with these lines.
fn head(lines: &str) -> Head {
    take(&format!("HTTP/1.1 200 OK\r\n{lines}\r\n"), &Method::POST).unwrap().unwrap()
}

fn is_refused(lines: &str) -> bool {
    let head = take(&format!("HTTP/1.1 200 OK\r\n{lines}\r\n"), &Method::POST);
    matches!(head, Err(Fault::Malformed(_)))
}

#[test]
fn a_head_is_taken_when_it_is_whole() {
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
fn what_follows_a_head_stays() {
    let mut input = BytesMut::from("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let head = head::take(&mut input, &Method::GET).unwrap().unwrap();
    assert_eq!((head.body, &input[..]), (Decoder::Length(2), &b"ok"[..]));
}

#[test]
fn a_head_that_is_none_is_refused() {
    for text in ["SSH-2.0-x\r\n", "HTTP/2.0 200 OK\r\n\r\n", "HTTP/1.1 20x OK\r\n\r\n", "\0"] {
        assert!(matches!(take(text, &Method::GET), Err(Fault::Malformed(_))), "{text}");
    }
}

#[test]
fn a_head_without_bounds_is_refused() {
    assert!(is_refused(&"X: y\r\n".repeat(101)), "too many fields");
    let long = format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(500_000));
    assert!(matches!(take(&long, &Method::GET), Err(Fault::Malformed(_))), "and no end");
    assert!(is_refused(&format!("X: {}\r\n", "y".repeat(500_000))));
}

#[test]
fn a_line_that_cannot_be_read_is_passed_over() {
    let head = head("what is this\r\nBad Name: 1\r\nX-A: 1\r\n");
    assert_eq!(head.parts.headers.len(), 1);
}

#[test]
fn blanks_before_a_colon_are_not_part_of_a_name() {
    let head = head("Transfer-Encoding : chunked\r\nX-A \t: 1\r\n");
    assert_eq!((head.body, head.kept), (Decoder::chunked(), true));
    assert_eq!(head.parts.headers["x-a"], "1");
}

#[test]
fn a_line_that_may_say_where_the_body_ends_is_not_passed_over() {
    for line in ["Content-Length: 5\u{1}", "content-length", "Transfer-Encoding\u{1}: chunked"] {
        for beside in ["", "Content-Length: 3\r\n"] {
            let text = format!("HTTP/1.1 200 OK\r\n{line}\r\n{beside}\r\n");
            let taken = head::take(&mut BytesMut::from(&*text), &Method::POST);
            assert!(matches!(taken, Err(Fault::Malformed(_))), "{text}: {taken:?}");
        }
    }
    let head = head("what is this\r\nContent-Length-Of-Old: 7\r\nContent-Length: 3\r\n");
    assert_eq!(head.body, Decoder::Length(3));
}

#[test]
fn a_folded_line_is_one_line() {
    let head = head("X-A: one\r\n two\r\n\tthree\r\nContent-Length:\r\n 3\r\nX-B: 4\r\n");
    let value = head.parts.headers["x-a"].to_str().unwrap();
    assert_eq!(value.split_whitespace().collect::<Vec<_>>(), ["one", "two", "three"]);
    assert_eq!(
        (head.body, &head.parts.headers["x-b"]),
        (Decoder::Length(3), &"4".parse().unwrap())
    );
}

#[test]
fn a_body_ends_where_its_head_says() {
    assert_eq!(head("Content-Length: 5\r\n").body, Decoder::Length(5));
    assert_eq!(head("Content-Length: 0\r\n").body, Decoder::Done);
    assert_eq!(head("Transfer-Encoding: Chunked\r\n").body, Decoder::chunked());
    assert_eq!(head("").body, Decoder::UntilClose);
}

#[test]
fn a_length_that_is_said_twice_is_passed_on_once() {
    for (lines, body, length) in [
        ("Content-Length: 5\r\nContent-Length: 5\r\n", Decoder::Length(5), "5"),
        ("Content-Length: 5, 5\r\n", Decoder::Length(5), "5"),
        ("Content-Length: 5,5\r\nContent-Length: 05\r\n", Decoder::Length(5), "5"),
        ("Content-Length: 0, 0\r\n", Decoder::Done, "0"),
    ] {
        let head = head(lines);
        let lengths: Vec<_> = head.parts.headers.get_all(header::CONTENT_LENGTH).iter().collect();
        assert_eq!((head.body, head.kept), (body, true), "{lines}");
        assert_eq!(lengths, [length], "{lines}");
    }
}

#[test]
fn a_head_of_two_opinions_is_refused() {
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
    assert!(matches!(take(old, &Method::GET), Err(Fault::Malformed(_))));
}

#[test]
fn chunks_count_more_than_a_length_and_their_connection_is_not_used_again() {
    for length in ["5", "5, 6", "-5", "five", ""] {
        let head = head(&format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"));
        assert_eq!((head.body, head.kept), (Decoder::chunked(), false), "{length}");
    }
}

#[test]
fn chunks_that_are_announced_twice_are_chunks_once() {
    for lines in [
        "Transfer-Encoding: chunked, Chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    ] {
        let head = head(lines);
        assert_eq!((head.body, head.kept), (Decoder::chunked(), false), "{lines}");
    }
    assert!(head("Transfer-Encoding: chunked\r\n").kept);
}

#[test]
fn some_answers_have_no_body_whatever_they_say() {
    let kept = |method, status, line| {
        let text = format!("HTTP/1.1 {status} X\r\n{line}\r\n");
        let head = take(&text, &method).unwrap().unwrap();
        assert_eq!(head.body, Decoder::Done, "{status} {line}");
        head.kept
    };
    for line in ["", "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n"] {
        for status in [100, 101, 304] {
            assert!(kept(Method::GET, status, line), "{status} {line}");
        }
        assert!(kept(Method::HEAD, 200, line), "{line}");
        // No other answer would have a body there: one may follow.
        assert_eq!(kept(Method::GET, 204, line), line.is_empty(), "{line}");
    }
    assert!(kept(Method::GET, 204, "Content-Length: 0\r\n"));
    assert!(!kept(Method::GET, 204, "Content-Length: none\r\n"));
}

#[test]
fn interim_answers_are_passed_over_until_there_are_too_many() {
    let interim = "HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n";
    let answer = "HTTP/1.1 204 No Content\r\n\r\n";
    let mut input = BytesMut::from(&*[&interim.repeat(100), answer].concat());
    let head = Search::default().next(&mut input, &Method::GET).unwrap().unwrap();
    assert_eq!((head.parts.status, input.len()), (StatusCode::NO_CONTENT, 0));
    let (mut search, mut input) = (Search::default(), BytesMut::new());
    for count in 1..=101 {
        input.extend_from_slice(interim.as_bytes());
        let found = search.next(&mut input, &Method::GET);
        assert_eq!(matches!(found, Err(Fault::Malformed(_))), count > 100, "{count}");
    }
}

#[test]
fn a_head_without_a_line_is_refused_when_it_is_too_long() {
    let (mut search, mut input) = (Search::default(), BytesMut::new());
    let refused = (0..500).find(|_| {
        input.extend_from_slice(&[b'H'; 1024]);
        search.next(&mut input, &Method::GET).is_err()
    });
    assert_eq!(refused, Some(400), "in KiB");
}

#[test]
fn a_connection_is_kept_if_both_may() {
    let kept = |text: &str| {
        let text = format!("HTTP/{text}\r\nContent-Length: 0\r\n\r\n");
        take(&text, &Method::GET).unwrap().unwrap().kept
    };
    assert!(kept("1.1 200 OK"));
    assert!(kept("1.1 200 OK\r\nConnection: keep-alive"));
    assert!(!kept("1.1 200 OK\r\nConnection: x, Close"));
    assert!(!kept("1.0 200 OK"));
    assert!(kept("1.0 200 OK\r\nConnection: Keep-Alive"));
    assert!(!kept("1.0 200 OK\r\nConnection: keep-alive\r\nConnection: close"));
    assert!(!head("").kept, "only its end ends the body");
}

/// Reads a body that comes in pieces of so many bytes: its data, its trailers, and what is left.
fn read(mut body: Decoder, text: &str, piece: usize) -> Result<(String, usize, String), Fault> {
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
    let left = String::from_utf8(input.to_vec()).unwrap();
    Ok((String::from_utf8(data).unwrap(), trailers, left))
}

#[test]
fn a_body_is_read_in_whatever_pieces_it_comes() {
    let long = "x".repeat(5000);
    let chunked = format!("5;a=b\r\nhello\r\n1388 \r\n{long}\r\n0\r\nX-A: 1\r\nX-B: 2\r\n\r\nmore");
    for piece in [1, 2, 3, 7, 100, 10_000] {
        let (data, trailers, left) = read(Decoder::chunked(), &chunked, piece).unwrap();
        assert_eq!((data, trailers, &*left), (format!("hello{long}"), 2, "more"), "{piece}");
        let read = |body, text| read(body, text, piece).unwrap();
        assert_eq!(read(Decoder::chunked(), "0\r\n\r\n"), (String::new(), 0, String::new()));
        assert_eq!(read(Decoder::Length(3), "abcde"), ("abc".to_owned(), 0, "de".to_owned()));
        assert_eq!(read(Decoder::UntilClose, "abc"), ("abc".to_owned(), 0, String::new()));
        assert_eq!(read(Decoder::Done, "abc"), (String::new(), 0, "abc".to_owned()));
    }
}

#[test]
fn a_body_that_breaks_off_is_not_whole() {
    let chunked = "5\r\nhello\r\n0\r\nX-A: 1\r\n\r\n";
    for end in 0..chunked.len() {
        let read = read(Decoder::chunked(), &chunked[..end], 3);
        assert!(matches!(read, Err(Fault::Ended)), "{end}");
    }
    assert!(matches!(read(Decoder::Length(3), "ab", 1), Err(Fault::Ended)));
}

#[test]
fn chunks_may_say_little_besides() {
    let chunk = format!("1;{}\r\nx\r\n", "e".repeat(999));
    assert!(read(Decoder::chunked(), &format!("{}0\r\n\r\n", chunk.repeat(16)), 100).is_ok());
    let more = read(Decoder::chunked(), &chunk.repeat(18), 100);
    assert!(matches!(more, Err(Fault::Malformed(_))), "{more:?}");
    // A little beside each chunk is nothing, however many there are.
    for chunk in ["1       \r\nx\r\n", "1;at=12345678\r\nx\r\n"] {
        let many = format!("{}0\r\n\r\n", chunk.repeat(10_000));
        assert!(read(Decoder::chunked(), &many, 100).is_ok(), "{chunk:?}");
    }
}

#[test]
fn a_chunk_that_is_none_is_refused() {
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
            assert!(matches!(read, Err(Fault::Malformed(_))), "{text}: {read:?}");
        }
    }
}
