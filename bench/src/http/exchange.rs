//! One request and its answer, as bytes.
//!
//! The request is made once; only its key is changed. Every answer is held against what the server
//! has to say, and behind a proxy every order against what was sent, so that nothing fast and wrong
//! is ever measured.

use std::ops::Range;

use anyhow::Context as _;

use crate::random::KeyText;

/// Where the servers take orders.
pub(crate) const PATH: &str = "/charges";

/// The header that names the caller.
pub(crate) const CALLER: &str = "x-merchant-id";

/// What the servers answer besides the status 201 and the body.
pub(crate) const LOCATION: &str = "/charges/ch_8e03978e40d543e8bc936894a57f9324";

/// The body of every answer: 300 bytes.
pub(crate) const ANSWER: &str = concat!(
    r#"{"id":"ch_8e03978e40d543e8bc936894a57f9324","object":"charge","amount":12990,"#,
    r#""currency":"eur","status":"succeeded","capture":true,"created":1794700800,"#,
    r#""customer":"cus_6894a57f9324","description":"Order 71-2026, two seats, row 7","#,
    r#""receipt":"https://pay.example.org/receipts/8e03978e40d543e8","lost":0}"#,
);

/// The body of every request: 200 bytes.
pub(crate) const ORDER: &str = concat!(
    r#"{"amount":12990,"currency":"eur","capture":true,"customer":"cus_6894a57f9324","#,
    r#""description":"Order 71-2026, two seats, row 7","source":"tok_43e8bc936894","#,
    r#""metadata":{"order":"71-2026","cart":"8e039"}}"#,
);

/// The bytes of a request, whose key can be changed.
#[derive(Debug)]
pub(crate) struct Request {
    bytes: Vec<u8>,
    /// Where the key is, if there is one.
    key: Option<Range<usize>>,
}

impl Request {
    pub(crate) fn keyed() -> Self {
        Self::keyed_with("")
    }

    /// With these further lines in its head, each with its end.
    pub(crate) fn keyed_with(lines: &str) -> Self {
        let before = format!("{}{lines}idempotency-key: ", Self::head());
        let key = before.len()..before.len() + size_of::<KeyText>();
        let bytes = format!("{before}{}\r\n\r\n{ORDER}", "k".repeat(key.len())).into_bytes();
        Self { bytes, key: Some(key) }
    }

    pub(crate) fn without_key() -> Self {
        Self { bytes: format!("{}\r\n{ORDER}", Self::head()).into_bytes(), key: None }
    }

    fn head() -> String {
        format!(
            "POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n{CALLER}: merchant-71\r\n",
            ORDER.len(),
        )
    }

    /// The bytes to send, with this key if there is one at all.
    pub(crate) fn with_key(&mut self, key: &KeyText) -> &[u8] {
        if let Some(place) = &self.key {
            self.bytes[place.clone()].copy_from_slice(key);
        }
        &self.bytes
    }
}

/// What is known of an answer once it has come in whole.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Answer {
    /// The one answer, from its execution or, if so marked, from the record.
    Good { replayed: bool },
    /// Anything else.
    Bad,
}

/// Reads the answer that `bytes` begin with, if all of it has come, and says how long it is.
pub(crate) fn read(bytes: &[u8]) -> anyhow::Result<Option<(Answer, usize)>> {
    let Some((head, body)) = split(bytes) else {
        return Ok(None);
    };
    let created = head.starts_with(b"HTTP/1.1 201 ");
    let (mut length, mut located, mut replayed) = (None, false, false);
    for line in fields(head) {
        if let Some(value) = value_of(line, b"content-length: ") {
            length = str::from_utf8(value)?.parse().ok();
        } else if let Some(value) = value_of(line, b"location: ") {
            located = value == LOCATION.as_bytes();
        } else if let Some(value) = value_of(line, b"idempotent-replayed: ") {
            replayed = value == b"true";
        }
    }
    let length: usize = length.context("an answer does not say how long it is")?;
    let Some(body) = body.get(..length) else {
        return Ok(None);
    };
    let good = created && located && body == ANSWER.as_bytes();
    let answer = if good { Answer::Good { replayed } } else { Answer::Bad };
    Ok(Some((answer, head.len() + 4 + length)))
}

/// The head and what follows it, once the head is whole.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.windows(4).position(|end| end == b"\r\n\r\n")?;
    Some((&bytes[..end], &bytes[end + 4..]))
}

/// The lines of a head, without the first.
fn fields(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    head.split(|byte| *byte == b'\n').skip(1).map(<[u8]>::trim_ascii_end)
}

fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (begin, value) = line.split_at_checked(name.len())?;
    begin.eq_ignore_ascii_case(name).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: &str, header: &str, body: &str) -> String {
        let length = body.len();
        format!(
            "HTTP/1.1 {status}\r\nLocation: {LOCATION}\r\n{header}content-length: {length}\r\n\r\n\
             {body}"
        )
    }

    #[test]
    fn requests_and_answers_have_the_sizes_that_are_claimed() {
        assert_eq!((ORDER.len(), ANSWER.len()), (200, 300));
        let mut request = Request::keyed();
        let length = request.with_key(&[b'a'; 36]).len();
        let text = str::from_utf8(request.with_key(&[b'b'; 36])).unwrap();
        assert_eq!(text.len(), length);
        assert!(text.contains(&format!("\r\nidempotency-key: {}\r\n\r\n{{", "b".repeat(36))));
    }

    #[test]
    fn an_answer_is_read_once_it_is_whole() {
        let text = answer("201 Created", "idempotent-replayed: true\r\n", ANSWER);
        for length in 0..text.len() {
            assert_eq!(read(&text.as_bytes()[..length]).unwrap(), None);
        }
        let whole = Some((Answer::Good { replayed: true }, text.len()));
        assert_eq!(read(format!("{text}HTTP/1.1").as_bytes()).unwrap(), whole);
        let first = answer("201 Created", "", ANSWER);
        let whole = Some((Answer::Good { replayed: false }, first.len()));
        assert_eq!(read(first.as_bytes()).unwrap(), whole);
    }

    #[test]
    fn another_status_body_or_place_is_bad() {
        let other = ANSWER.replace("12990", "12991");
        let good = answer("201 Created", "", ANSWER);
        for text in [
            answer("200 OK", "", ANSWER),
            answer("201 Created", "", &other),
            good.replace(LOCATION, "/charges/other"),
        ] {
            assert_eq!(read(text.as_bytes()).unwrap(), Some((Answer::Bad, text.len())));
        }
        assert!(read(b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
    }
}
