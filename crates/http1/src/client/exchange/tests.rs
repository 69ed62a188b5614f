//! A response parses the same however it is split into pieces, valid or not.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method};
use proptest::{collection::vec, prelude::*, sample::Index};

use crate::client::exchange::{HeadParser, Http1Error};

/// A parsed response: status, headers, keep-alive, body, trailers, and the remaining input.
type Parsed = (u16, HeaderMap, bool, Vec<u8>, Option<HeaderMap>, Bytes);

/// Parses a response as an exchange does, until the connection ends.
fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Parsed, Http1Error> {
    let (mut parser, mut input) = (HeadParser::default(), BytesMut::new());
    let (mut head, mut data, mut trailers) = (None, Vec::new(), None);
    for piece in pieces {
        input.extend_from_slice(piece);
        if head.is_none() {
            head = parser.next(&mut input, &Method::GET)?;
        }
        let Some(head) = &mut head else { continue };
        while let Some(frame) = head.body.next(&mut input)? {
            match frame.into_data() {
                Ok(bytes) => data.extend_from_slice(&bytes),
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        }
    }
    let mut head = head.ok_or(Http1Error::Closed)?;
    head.body.end()?;
    let (status, fields) = (head.parts.status.as_u16(), head.parts.headers);
    Ok((status, fields, head.keep_alive, data, trailers, input.freeze()))
}

/// Framing fields, other fields, and invalid lines.
fn line() -> impl Strategy<Value = String> {
    let framing = prop_oneof![
        (0..40_u8).prop_map(|length| format!("Content-Length: {length}")),
        Just("Content-Length: 4, 4".to_owned()),
        Just("Transfer-Encoding: chunked".to_owned()),
        Just("Connection: close".to_owned()),
    ];
    let end = prop_oneof![9 => Just("\r\n"), 1 => Just("\n"), 1 => Just("\r\n ")];
    let line = prop_oneof![3 => framing, 2 => "[a-z]{1,5}: ?[ -~]{0,9}", 1 => "[ -~\t]{0,9}"];
    (line, end).prop_map(|(line, end)| line + end)
}

fn head() -> impl Strategy<Value = Vec<u8>> {
    let status = prop_oneof![9 => 200..=206_u16, 2 => 100..=104_u16, 1 => Just(304)];
    (status, vec(line(), 0..4)).prop_map(|(status, lines)| {
        format!("HTTP/1.1 {status} OK\r\n{}\r\n", lines.concat()).into_bytes()
    })
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let chunk = vec(any::<u8>(), 1..40)
        .prop_map(|data| [format!("{:x};e=v\r\n", data.len()).as_bytes(), &data, b"\r\n"].concat());
    let chunked = (vec(chunk, 0..4), vec(line(), 0..2)).prop_map(|(chunks, trailers)| {
        [&*chunks.concat(), b"0\r\n", trailers.concat().as_bytes(), b"\r\n"].concat()
    });
    prop_oneof![chunked, vec(any::<u8>(), 0..60)]
}

/// A response in which some bytes may be corrupted.
fn response() -> impl Strategy<Value = Vec<u8>> {
    let parts = (vec(head(), 1..3), body());
    let wrong = prop_oneof![3 => Just(0), 1 => 1..4_usize]
        .prop_flat_map(|count| vec((any::<Index>(), any::<u8>()), count));
    (parts, wrong).prop_map(|((heads, body), wrong)| {
        let mut bytes = [heads.concat(), body].concat();
        for (place, byte) in wrong {
            *place.get_mut(&mut bytes) = byte;
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_response_parses_the_same_however_it_is_split(
        response in response(),
        places in vec(any::<Index>(), 0..8),
    ) {
        // The error may differ: an invalid line that never ends is reported as a closed connection.
        let whole = read([&*response]).ok();
        prop_assert_eq!(&read(response.chunks(1)).ok(), &whole);
        let mut places: Vec<_> = places.iter().map(|place| place.index(response.len())).collect();
        places.sort_unstable();
        let begins = [0].into_iter().chain(places.iter().copied());
        let ends = places.iter().copied().chain([response.len()]);
        let pieces = begins.zip(ends).map(|(begin, end)| &response[begin..end]);
        prop_assert_eq!(&read(pieces).ok(), &whole);
    }
}
