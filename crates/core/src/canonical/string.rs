//! Strings: from any spelling to their characters, and from these to one spelling.
//!
//! Unescaped text is UTF-8, except that a lone surrogate is kept as the three bytes that UTF-8
//! would give it (WTF-8). The body itself was checked to be UTF-8, so these bytes can come from an
//! escape only, and an escaped pair always becomes the one character it stands for: no two
//! different strings meet.

use super::error::JsonErrorKind;

/// Reads a string that has escapes, after its opening quote. Appends its characters to the text
/// and returns how many bytes it takes, without the closing quote. On failure, says how many were
/// fine.
pub(super) fn unescaped(bytes: &[u8], text: &mut Vec<u8>) -> Result<usize, (JsonErrorKind, usize)> {
    let mut rest = bytes;
    loop {
        let (plain, special) = rest.split_at_checked(run(rest)).unwrap_or((rest, &[]));
        text.extend_from_slice(plain);
        let length = bytes.len().saturating_sub(special.len());
        match special {
            [] => return Err((JsonErrorKind::Incomplete, length)),
            [b'"', ..] => return Ok(length),
            [b'\\', escape @ ..] => {
                rest = unescape(escape, text).map_err(|kind| (kind, length))?;
            }
            _ => return Err((JsonErrorKind::ControlCharacter, length)),
        }
    }
}

/// How many bytes come before the next quote, backslash or control character.
#[inline]
pub(super) fn run(bytes: &[u8]) -> usize {
    let (words, tail) = bytes.as_chunks::<8>();
    let mut count = 0_usize;
    for word in words {
        let found = specials(u64::from_le_bytes(*word));
        if found != 0 {
            return count.wrapping_add(usize::from(first_byte(found)));
        }
        count = count.wrapping_add(8);
    }
    let special = |byte: &u8| *byte < 0x20 || *byte == b'"' || *byte == b'\\';
    count.saturating_add(tail.iter().position(special).unwrap_or(tail.len()))
}

/// The top bit of the lowest byte that is a quote, a backslash or a control character, and maybe
/// of bytes above it: subtracting borrows upwards, so only the lowest is certain.
fn specials(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 0xFF;
    let each = |byte: u8| ONES.wrapping_mul(u64::from(byte));
    let below = |word: u64, limit: u8| word.wrapping_sub(each(limit)) & !word;
    // With this bit turned a quote is 0x20, next to the control characters, and no other byte
    // takes its place.
    let control_or_quote = below(word ^ each(b'"' ^ 0x20), 0x21);
    let backslash = below(word ^ each(b'\\'), 1);
    (control_or_quote | backslash) & each(0x80)
}

/// The first eight bytes of a text as one number, with zeros for those it does not have. The text
/// is this long and may be followed by other bytes.
///
/// The numbers of two texts are in the order of the texts; equal ones decide nothing.
#[inline]
pub(super) fn head(bytes: &[u8], length: usize) -> u64 {
    let word = bytes.first_chunk().copied().unwrap_or_else(|| padded(bytes));
    let beyond = match length {
        0..8 => u64::MAX >> (length << 3),
        _ => 0,
    };
    u64::from_be_bytes(word) & !beyond
}

/// At most eight bytes, then zeros.
#[cold]
fn padded(bytes: &[u8]) -> [u8; 8] {
    let mut word = [0; 8];
    word.iter_mut().zip(bytes).for_each(|(slot, byte)| *slot = *byte);
    word
}

/// Which byte of a word the lowest bit that is set is in.
fn first_byte(word: u64) -> u8 {
    u8::try_from(word.trailing_zeros() / 8).unwrap_or_default()
}

/// Appends what an escape stands for and returns what follows it.
fn unescape<'a>(escape: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], JsonErrorKind> {
    let (sign, rest) = escape.split_first().ok_or(JsonErrorKind::Incomplete)?;
    let byte = match sign {
        b'"' | b'\\' | b'/' => *sign,
        b'b' => 0x08,
        b'f' => 0x0C,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'u' => {
            let (unit, rest) = code_unit(rest)?;
            return Ok(push_unit(unit, rest, text));
        }
        _ => return Err(JsonErrorKind::Escape),
    };
    text.push(byte);
    Ok(rest)
}

/// Four hexadecimal digits.
fn code_unit(bytes: &[u8]) -> Result<(u16, &[u8]), JsonErrorKind> {
    let mut unit = 0_u16;
    let mut rest = bytes;
    for _ in 0..4 {
        let (digit, after) = rest.split_first().ok_or(JsonErrorKind::Incomplete)?;
        let digit = char::from(*digit).to_digit(16).and_then(|digit| u16::try_from(digit).ok());
        unit = unit << 4 | digit.ok_or(JsonErrorKind::Escape)?;
        rest = after;
    }
    Ok((unit, rest))
}

/// Appends a UTF-16 code unit, or the pair that it starts, and returns what follows.
fn push_unit<'a>(unit: u16, rest: &'a [u8], text: &mut Vec<u8>) -> &'a [u8] {
    if let Some(character) = char::from_u32(u32::from(unit)) {
        push_char(character, text);
        return rest;
    }
    // An error in the second escape is found when that escape is read for itself.
    let second = rest.strip_prefix(b"\\u").and_then(|digits| code_unit(digits).ok());
    if let Some((second, after)) = second
        && let Some(Ok(character)) = char::decode_utf16([unit, second]).next()
    {
        push_char(character, text);
        return after;
    }
    let [high, low] = unit.to_be_bytes();
    text.extend([0xE0 | high >> 4, 0x80 | (high & 0x0F) << 2 | low >> 6, 0x80 | low & 0x3F]);
    rest
}

fn push_char(character: char, text: &mut Vec<u8>) {
    text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
}

/// Appends the canonical text of a string, quotes included.
pub(super) fn write(mut text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    loop {
        // 0xED is looked at more closely: it may start a surrogate.
        let special = |byte: &u8| matches!(byte, 0..0x20 | b'"' | b'\\' | 0xED);
        let count = text.iter().position(special).unwrap_or(text.len());
        let (plain, rest) = text.split_at_checked(count).unwrap_or((text, &[]));
        out.extend_from_slice(plain);
        text = match rest {
            [] => break,
            [0xED, second @ 0xA0..=0xBF, third, rest @ ..] => {
                let low = (second & 0x03) << 6 | third & 0x3F;
                out.extend_from_slice(b"\\ud");
                out.extend([hex(0x08 | second >> 2), hex(low >> 4), hex(low)]);
                rest
            }
            [byte, rest @ ..] => {
                write_byte(*byte, out);
                rest
            }
        };
    }
    out.push(b'"');
}

fn write_byte(byte: u8, out: &mut Vec<u8>) {
    let short = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        b'\t' => b't',
        b'\n' => b'n',
        0x0C => b'f',
        b'\r' => b'r',
        0..0x20 => {
            out.extend_from_slice(b"\\u00");
            return out.extend([hex(byte >> 4), hex(byte)]);
        }
        _ => return out.push(byte),
    };
    out.extend([b'\\', short]);
}

/// The digit of the lower four bits.
fn hex(bits: u8) -> u8 {
    b"0123456789abcdef".get(usize::from(bits & 0x0F)).copied().unwrap_or_default()
}
