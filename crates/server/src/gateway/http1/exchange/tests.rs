//! An answer is the same in whatever pieces it comes, whether it is good or not.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method};
use proptest::{collection::vec, prelude::*, sample::Index};

use super::{Fault, Search};

/// What is understood of an answer: its status, its fields, whether its connection is kept, its
/// body, its trailers, and what is left.
type Understood = (u16, HeaderMap, bool, Vec<u8>, Option<HeaderMap>, Bytes);

/// Reads an answer as an exchange does, until the other side ends.
fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Understood, Fault> {
    let (mut search, mut input) = (Search::default(), BytesMut::new());
    let (mut head, mut data, mut trailers) = (None, Vec::new(), None);
    for piece in pieces {
        input.extend_from_slice(piece);
        if head.is_none() {
            head = search.next(&mut input, &Method::GET)?;
        }
        let Some(head) = &mut head else { continue };
        while let Some(frame) = head.body.next(&mut input)? {
            match frame.into_data() {
                Ok(bytes) => data.extend_from_slice(&bytes),
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        }
    }
    let mut head = head.ok_or(Fault::Ended)?;
    head.body.end()?;
    let (status, fields) = (head.parts.status.as_u16(), head.parts.headers);
    Ok((status, fields, head.kept, data, trailers, input.freeze()))
}

/// Lines that matter, lines that do not, and lines that are none.
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

/// An answer, some of whose bytes may be wrong.
fn answer() -> impl Strategy<Value = Vec<u8>> {
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
    fn an_answer_is_the_same_in_whatever_pieces_it_comes(
        answer in answer(),
        places in vec(any::<Index>(), 0..8),
    ) {
        // What is wrong in a line that never ends need not be seen: it breaks off all the same.
        let whole = read([&*answer]).ok();
        prop_assert_eq!(&read(answer.chunks(1)).ok(), &whole);
        let mut places: Vec<_> = places.iter().map(|place| place.index(answer.len())).collect();
        places.sort_unstable();
        let begins = [0].into_iter().chain(places.iter().copied());
        let ends = places.iter().copied().chain([answer.len()]);
        let pieces = begins.zip(ends).map(|(begin, end)| &answer[begin..end]);
        prop_assert_eq!(&read(pieces).ok(), &whole);
    }
}
