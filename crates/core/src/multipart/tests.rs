//! Examples of multipart bodies: what changes the canonical form, what does not, and what is
//! refused.

use proptest::prelude::*;

use super::params::ParameterizedValue;
use super::{MultipartError, PART_HEADER_BYTES_MAX, PARTS_MAX, canonical, parse};

/// A body with the boundary `b` whose parts are given from their headers on.
fn body(parts: &[&str]) -> Vec<u8> {
    let parts: String = parts.iter().map(|part| format!("--b\r\n{part}\r\n")).collect();
    format!("{parts}--b--\r\n").into_bytes()
}

fn field(headers: &str) -> Vec<u8> {
    canonical(&body(&[&format!("{headers}\r\n\r\nx")]), b"b").unwrap()
}

fn contents(body: &[u8], boundary: &[u8]) -> Result<Vec<Vec<u8>>, MultipartError> {
    Ok(parse(body, boundary)?.into_iter().map(|part| part.content.to_vec()).collect())
}

const NAME: &str = "Content-Disposition: form-data; name=\"a\"";

#[test]
fn boundary_preamble_epilogue_and_padding_do_not_change_the_canonical_form() {
    let plain = canonical(&body(&[&format!("{NAME}\r\n\r\n1")]), b"b").unwrap();
    let dressed = format!("Hello\r\n--Zz \t\r\n{NAME}\r\n\r\n1\r\n--Zz--  \r\nbye");
    assert_eq!(canonical(dressed.as_bytes(), b"Zz").unwrap(), plain);
}

#[test]
fn order_number_and_content_of_parts_change_the_canonical_form() {
    let part = |name: &str, content: &str| {
        format!("Content-Disposition: form-data; name={name}\r\n\r\n{content}")
    };
    let (a, b) = (part("a", "1"), part("b", "2"));
    let bodies = [
        body(&[&a, &b]),
        body(&[&b, &a]),
        body(&[&a]),
        body(&[&a, &a]),
        body(&[&part("a", "1\r\n")]),
        body(&[&part("a", "")]),
        body(&[]),
    ];
    for (index, one) in bodies.iter().enumerate() {
        for other in &bodies[index + 1..] {
            assert_ne!(canonical(one, b"b"), canonical(other, b"b"));
        }
    }
}

#[test]
fn the_spelling_of_headers_does_not_change_the_canonical_form() {
    let plain = field("Content-Disposition: form-data; name=a; filename=\"b c\"");
    for other in [
        "content-disposition:form-data;NAME=\"a\"; filename=\"b c\"",
        "CONTENT-DISPOSITION:  Form-Data ; filename=\"b c\" ;name=a ",
        "X-Other: 1\r\nContent-Disposition: form-data;\r\n name=a;\r\n\tfilename=\"b c\"",
        "Content-Disposition: form-data; name=a; filename=\"b c\"\r\nContent-Length: 1\r\n folded",
    ] {
        assert_eq!(field(other), plain, "{other}");
    }
    assert_eq!(
        field("Content-Type: Text/Plain; Charset=x\r\nContent-Transfer-Encoding: Binary"),
        field("content-transfer-encoding: binary\r\ncontent-type: text/plain;charset=\"x\""),
    );
}

#[test]
fn part_headers_distinguish_canonical_forms() {
    let fields = [
        "X: 1",
        "Content-Disposition: form-data; name=a",
        "Content-Disposition: form-data; name=b",
        "Content-Disposition: form-data; name=A",
        "Content-Disposition: attachment; name=a",
        "Content-Disposition: form-data; name=a; filename=a",
        "Content-Disposition: form-data; name=a; filename*=UTF-8''a",
        "Content-Disposition: form-data; name=a; name=b",
        "Content-Disposition: form-data; name=b; name=a",
        "Content-Disposition: form-data; name=a; filename=\"C:\\x\"",
        "Content-Disposition: form-data; name=a; filename=\"C:\\\\x\"",
        "Content-Disposition: form-data; name=a; filename=\"C:\\x\\\"",
        "Content-Disposition: form-data; name=a; filename=\"C: x\"",
        "Content-Disposition: form-data; name=a; filename=\"C:\r\n  x\"",
        "Content-Disposition: form-data; name=\"a",
        "Content-Disposition: form-data; name=a\r\nContent-Type: text/plain",
        "Content-Disposition: form-data; name=a\r\nContent-Transfer-Encoding: base64",
        "Content-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=b",
    ];
    for (index, one) in fields.iter().enumerate() {
        for other in &fields[index + 1..] {
            assert_ne!(field(one), field(other), "{one} | {other}");
        }
    }
}

#[test]
fn a_line_that_only_starts_like_a_boundary_is_content() {
    let text = "\r\n\r\n--bx\r\n--b --\r\n--b-\r\n--b=";
    let parsed = contents(&body(&[text]), b"b").unwrap();
    assert_eq!(parsed, [b"\r\n--bx\r\n--b --\r\n--b-\r\n--b=".to_vec()]);
}

#[test]
fn content_may_contain_any_other_bytes() {
    for content in ["", "\r\n", " --b", "\n--b\r\n", "\r\n\r\n", "\0", "a\r\n-"] {
        let parsed = contents(&body(&[&format!("\r\n{content}")]), b"b").unwrap();
        assert_eq!(parsed, [content.as_bytes()], "{content:?}");
    }
}

#[test]
fn a_form_without_fields_has_no_parts() {
    assert_eq!(parse(b"--b--", b"b"), Ok(Vec::new()));
    assert_eq!(parse(b"--b--\r\n", b"b"), Ok(Vec::new()));
}

#[test]
fn a_broken_body_is_refused() {
    for (broken, error) in [
        ("", MultipartError::NoParts),
        ("no boundary", MultipartError::NoParts),
        ("--b\r\n\r\nx", MultipartError::Unterminated),
        ("--b\r\n\r\nx\r\n--b\r\n", MultipartError::Unterminated),
        ("--b\r\n\r\nx--b--\r\n", MultipartError::Unterminated),
        ("--b\r\n--b--\r\n", MultipartError::Unterminated),
        ("--b\r\n\r\nx\r\n--b--x", MultipartError::Unterminated),
        ("--bx\r\n\r\nx\r\n--b--\r\n", MultipartError::StrayBoundary),
        ("x--b\r\n\r\nx\r\n--b--\r\n", MultipartError::StrayBoundary),
        ("\n--b\r\n\r\nx\r\n--b--\r\n", MultipartError::StrayBoundary),
        ("--b\n\nx\n--b--\n", MultipartError::StrayBoundary),
        ("--b\r\n\r\nx\r\n--b--\r\n--b\r\n\r\ny\r\n--b--", MultipartError::StrayBoundary),
        ("--b\r\nA: b\r\n--b--", MultipartError::Headers { part: 1 }),
        ("--b\r\n\r\n\r\n--b\r\nA\r\n\r\n\r\n--b--", MultipartError::Headers { part: 2 }),
        ("--b\r\nA : b\r\n\r\n\r\n--b--", MultipartError::Headers { part: 1 }),
        ("--b\r\n A: b\r\n\r\n\r\n--b--", MultipartError::Headers { part: 1 }),
        ("--b\r\nA: b\nC: d\r\n\r\n\r\n--b--", MultipartError::Headers { part: 1 }),
        ("--b\r\n: b\r\n\r\n\r\n--b--", MultipartError::Headers { part: 1 }),
    ] {
        assert_eq!(parse(broken.as_bytes(), b"b"), Err(error), "{broken:?}");
    }
}

#[test]
fn a_bad_boundary_is_refused() {
    assert_eq!(parse(b"----", b""), Err(MultipartError::NoBoundary));
    for boundary in [b"b ".as_slice(), &[b'b'; 71], b"b\r\nc", b"\xFF", b"a\"", b"a\\b"] {
        assert_eq!(parse(b"", boundary), Err(MultipartError::BadBoundary), "{boundary:?}");
    }
    assert_eq!(parse(&[b"--", [b'b'; 70].as_slice(), b"--"].concat(), &[b'b'; 70]), Ok(vec![]));
}

#[test]
fn parts_and_headers_are_bounded() {
    let most = vec!["\r\n"; PARTS_MAX];
    assert_eq!(parse(&body(&most), b"b").unwrap().len(), PARTS_MAX);
    let more = vec!["\r\n"; PARTS_MAX + 1];
    assert_eq!(parse(&body(&more), b"b"), Err(MultipartError::TooManyParts));

    let headers = |bytes: usize| body(&[&format!("A:{}\r\n\r\nx", "b".repeat(bytes - 2))]);
    assert!(parse(&headers(PART_HEADER_BYTES_MAX), b"b").is_ok());
    let too_large = Err(MultipartError::HeadersTooLarge { part: 1 });
    assert_eq!(parse(&headers(PART_HEADER_BYTES_MAX + 1), b"b"), too_large);
}

#[test]
fn a_body_of_almost_boundaries_is_parsed_in_linear_time() {
    // A search that restarts at each byte would need 10^12 steps.
    let mut bytes = b"--b\r\n\r\n".to_vec();
    bytes.extend(b"\r\n--b \tx".repeat(200_000));
    bytes.extend(b" ".repeat(1_000_000));
    assert_eq!(parse(&bytes, b"b"), Err(MultipartError::Unterminated));
}

#[test]
fn header_values_are_cut_into_parameters() {
    let parse = |text: &'static str| ParameterizedValue::parse(text.as_bytes());
    let value = parse("a/b ; x=1;; Y = \"q;\\\"r\" ;z=\"\";").unwrap();
    assert_eq!(value.essence, b"a/b");
    let expected: [(&[u8], &[u8]); 3] = [(b"x", b"1"), (b"Y", b"q;\\\"r"), (b"z", b"")];
    assert_eq!(value.params, expected);
    assert_eq!(value.only(b"y"), Some(b"q;\\\"r".as_slice()));
    assert_eq!(parse("a; x=1; X=2").unwrap().only(b"x"), None);
    for text in [
        "a; x",
        "a; x=\\",
        "a; =1",
        "a; x=1 2",
        "a; x=\"1",
        "a; x=\"1\"2",
        "a; x=1\"2\"",
        "a; x y=1",
    ] {
        assert_eq!(parse(text), None, "{text}");
    }
}

proptest! {
    #[test]
    fn parts_round_trip_with_any_boundary(
        parts in prop::collection::vec(
            ("[a-z]{1,5}", prop::collection::vec(any::<u8>(), 0..30)),
            0..5,
        ),
        boundaries in ("[0-9A-Za-z'()+_,./:=?-]{30,70}", "[0-9A-Za-z'()+_,./:=?-]{30,70}"),
    ) {
        let encode = |boundary: &str| {
            let mut body = Vec::new();
            for (name, content) in &parts {
                let head = format!("--{boundary}\r\nContent-Disposition: form-data; name={name}");
                body.extend_from_slice(head.as_bytes());
                body.extend_from_slice(b"\r\n\r\n");
                body.extend_from_slice(content);
                body.extend_from_slice(b"\r\n");
            }
            body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
            body
        };
        let (one, two) = (encode(&boundaries.0), encode(&boundaries.1));
        let expected: Vec<_> = parts.iter().map(|(_, content)| content.clone()).collect();
        prop_assert_eq!(contents(&one, boundaries.0.as_bytes()).unwrap(), expected);
        prop_assert_eq!(
            canonical(&one, boundaries.0.as_bytes()),
            canonical(&two, boundaries.1.as_bytes())
        );
    }

    #[test]
    fn no_input_panics(body in r"(--b|\r|\n|\r\n|-|:|A| |;|=|\x00|x){0,40}") {
        let _ = canonical(body.as_bytes(), b"b");
    }
}
