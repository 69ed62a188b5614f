//! HTTP/2 frames as bytes, so that they can be wrong.

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;

/// A frame with this payload.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Fields as HPACK's literals without indexing, which are never compressed.
pub(crate) fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            put_length(text.len(), &mut block);
            block.extend(text.bytes());
        }
    }
    block
}

fn put_length(length: usize, block: &mut Vec<u8>) {
    if length < 127 {
        block.push(u8::try_from(length).unwrap());
        return;
    }
    block.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        block.push(u8::try_from(rest % 128).unwrap() | 128);
        rest /= 128;
    }
    block.push(u8::try_from(rest).unwrap());
}

/// A frame that came back.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// Takes the first frame off the bytes, if it is there as a whole.
    pub(crate) fn take(bytes: &mut Vec<u8>) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(9)?;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let payload = rest.get(..length)?.to_vec();
        let frame = Self { kind: head[3], payload };
        bytes.drain(..9 + length);
        Some(frame)
    }

    /// The status of an answer, which is the first of its fields.
    pub(crate) fn status(&self) -> Option<u16> {
        match *self.payload {
            // These have a place in HPACK's static table.
            [0x88, ..] => Some(200),
            [0x8c, ..] => Some(400),
            [0x8d, ..] => Some(404),
            [0x8e, ..] => Some(500),
            [0x48, length, ref rest @ ..] => {
                let text = rest.get(..usize::from(length & 0x7f))?;
                let digits = if length & 0x80 == 0 { text.to_vec() } else { unsqueezed(text) };
                String::from_utf8(digits).ok()?.parse().ok()
            }
            _ => None,
        }
    }
}

/// Three digits in Huffman's code: 0 to 2 have five bits, the others six.
fn unsqueezed(bytes: &[u8]) -> Vec<u8> {
    let bits: Vec<u8> =
        bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1)).collect();
    let number = |bits: &[u8]| bits.iter().fold(0, |number, bit| number << 1 | bit);
    let (mut rest, mut digits) = (&bits[..], Vec::new());
    while digits.len() < 3 && rest.len() >= 5 {
        let short = number(&rest[..5]);
        let (digit, length) =
            if short <= 2 { (short, 5) } else { (number(&rest[..6.min(rest.len())]) - 22, 6) };
        digits.push(b'0' + digit);
        rest = rest.get(length..).unwrap_or_default();
    }
    digits
}
