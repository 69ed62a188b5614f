//! As much of RFC 9651 as one quoted key needs: a String, and the Parameters that may follow it.
//!
//! The parameters mean nothing to us, yet they are parsed to the letter: what does not parse is
//! malformed, and a recipient that guessed where the key ends could guess another key.

use super::KeyError;

/// What is left to read.
struct FieldCursor<'a>(&'a [u8]);

/// The characters of a String, unescaped. The whole value must be one Item.
pub(super) fn string_item(value: &[u8]) -> Result<Vec<u8>, KeyError> {
    let mut cursor = FieldCursor(value);
    if !cursor.eat(b'"') {
        return Err(KeyError::Unterminated);
    }
    let text = cursor.string()?;
    while cursor.eat(b';') {
        cursor.parameter().ok_or(KeyError::Parameter)?;
    }
    if cursor.0.is_empty() { Ok(text) } else { Err(KeyError::Trailing) }
}

impl FieldCursor<'_> {
    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn eat(&mut self, wanted: u8) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.next();
        }
        found
    }

    /// How many bytes fit, all of them consumed.
    fn skip(&mut self, fits: impl Fn(u8) -> bool) -> usize {
        let count = self.0.iter().take_while(|byte| fits(**byte)).count();
        self.0 = self.0.get(count..).unwrap_or_default();
        count
    }

    /// A String after its opening quote (section 4.2.5).
    fn string(&mut self) -> Result<Vec<u8>, KeyError> {
        let mut text = Vec::new();
        loop {
            match self.next().ok_or(KeyError::Unterminated)? {
                b'"' => return Ok(text),
                b'\\' => match self.next().ok_or(KeyError::Unterminated)? {
                    escaped @ (b'"' | b'\\') => text.push(escaped),
                    _ => return Err(KeyError::Escape),
                },
                byte @ b' '..=b'~' => text.push(byte),
                byte => {
                    let position = text.len().saturating_add(1);
                    return Err(KeyError::Character { byte, position });
                }
            }
        }
    }

    /// One parameter after its semicolon (section 4.2.3.2).
    fn parameter(&mut self) -> Option<()> {
        self.skip(|byte| byte == b' ');
        if !matches!(self.next()?, b'a'..=b'z' | b'*') {
            return None;
        }
        self.skip(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*'));
        if self.eat(b'=') { self.bare_item() } else { Some(()) }
    }

    /// A bare item of any type (section 4.2.3.1).
    fn bare_item(&mut self) -> Option<()> {
        match self.peek()? {
            b'-' | b'0'..=b'9' => self.number().map(|_| ()),
            b'A'..=b'Z' | b'a'..=b'z' | b'*' => {
                self.skip(is_token);
                Some(())
            }
            b'"' => {
                self.next();
                self.string().ok().map(|_| ())
            }
            b'?' => {
                self.next();
                matches!(self.next()?, b'0' | b'1').then_some(())
            }
            b'@' => {
                self.next();
                (self.number()? == FieldNumber::Integer).then_some(())
            }
            b':' => {
                self.next();
                self.byte_sequence()
            }
            b'%' => {
                self.next();
                self.display_string()
            }
            _ => None,
        }
    }

    /// An Integer of at most 15 digits, or a Decimal of at most 12 and 3 (section 4.2.4).
    fn number(&mut self) -> Option<FieldNumber> {
        self.eat(b'-');
        let whole = self.skip(|byte| byte.is_ascii_digit());
        if whole == 0 {
            return None;
        }
        if !self.eat(b'.') {
            return (whole <= 15).then_some(FieldNumber::Integer);
        }
        let fraction = self.skip(|byte| byte.is_ascii_digit());
        (whole <= 12 && (1..=3).contains(&fraction)).then_some(FieldNumber::Decimal)
    }

    /// A Byte Sequence after its opening colon (section 4.2.7): base64, the padding optional.
    fn byte_sequence(&mut self) -> Option<()> {
        let data = self.skip(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'));
        let padding = self.skip(|byte| byte == b'=');
        let padding_max = match data % 4 {
            0 => 0,
            2 => 2,
            3 => 1,
            _ => return None,
        };
        (padding <= padding_max && self.eat(b':')).then_some(())
    }

    /// A Display String after its percent sign (section 4.2.10).
    fn display_string(&mut self) -> Option<()> {
        if !self.eat(b'"') {
            return None;
        }
        let mut text = Vec::new();
        loop {
            match self.next()? {
                b'"' => return str::from_utf8(&text).ok().map(|_| ()),
                b'%' => {
                    let (high, low) = (hex(self.next()?)?, hex(self.next()?)?);
                    text.push(high << 4 | low);
                }
                byte @ b' '..=b'~' => text.push(byte),
                _ => return None,
            }
        }
    }
}

#[derive(PartialEq)]
enum FieldNumber {
    Integer,
    Decimal,
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)
}

/// The value of a hexadecimal digit; a Display String allows the lower case only.
fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => digit.checked_sub(b'0'),
        b'a'..=b'f' => digit.checked_sub(b'a' - 10),
        _ => None,
    }
}
