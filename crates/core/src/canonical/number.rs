//! Numbers as exact decimals: significant digits and a power of ten.

use std::io::Write;

use super::error::JsonErrorKind;

/// Maximum number of digits in plain decimal notation.
pub const NUMBER_DIGITS_MAX: usize = 255;

/// A number as it stands in the body, cut where the grammar of JSON cuts it.
pub(super) struct Number<'a> {
    pub(super) negative: bool,
    /// Digits before the point.
    pub(super) whole: &'a [u8],
    /// Digits after the point, if any.
    pub(super) fraction: &'a [u8],
    /// Digits of the exponent, if any.
    pub(super) exponent: &'a [u8],
    pub(super) exponent_negative: bool,
}

impl<'a> Number<'a> {
    /// The length of the number at the start of the bytes, if it is an integer whose text is
    /// canonical: it does not end in a zero. The common case, on a fast path.
    pub(super) fn plain(bytes: &[u8]) -> Option<usize> {
        let unsigned = bytes.strip_prefix(b"-").unwrap_or(bytes);
        let sign = bytes.len().saturating_sub(unsigned.len());
        let mut last = *unsigned.first().filter(|first| matches!(first, b'1'..=b'9'))?;
        for (count, byte) in unsigned.iter().enumerate().skip(1) {
            match byte {
                b'0'..=b'9' => last = *byte,
                b'.' | b'e' | b'E' => return None,
                _ => return (last != b'0').then(|| sign.saturating_add(count)),
            }
        }
        (last != b'0').then_some(bytes.len())
    }

    /// Appends the canonical text of the number at the start of the bytes and returns how long it
    /// is there, if it is a number without exponent. Else the text stays as it was.
    pub(super) fn decimal(bytes: &[u8], text: &mut Vec<u8>) -> Option<usize> {
        let before = text.len();
        let unsigned = bytes.strip_prefix(b"-").unwrap_or(bytes);
        if unsigned.len() < bytes.len() {
            text.push(b'-');
        }
        let mut row = DigitWriter { text, significant: false, zeros: 0 };
        let mut rest = row.digits(unsigned);
        let whole = unsigned.len().saturating_sub(rest.len());
        let mut fraction = 0;
        let mut sound = whole == 1 || (whole > 1 && !unsigned.starts_with(b"0"));
        if let [b'.', after @ ..] = rest {
            rest = row.digits(after);
            fraction = after.len().saturating_sub(rest.len());
            sound &= fraction > 0;
        }
        if !sound || matches!(rest, [b'e' | b'E', ..]) {
            text.truncate(before);
            return None;
        }
        let DigitWriter { significant, zeros, .. } = row;
        if significant {
            text.truncate(text.len().saturating_sub(zeros));
            write_exponent(length(zeros).saturating_sub(length(fraction)), text);
        } else {
            text.truncate(before);
            text.push(b'0');
        }
        Some(bytes.len().saturating_sub(rest.len()))
    }

    /// The number at the start of the bytes, and how long it is. On failure, how far it was fine.
    pub(super) fn scan(bytes: &'a [u8]) -> Result<(Self, usize), usize> {
        let at = |rest: &[u8]| bytes.len().saturating_sub(rest.len());
        let (negative, rest) = strip(bytes, b"-");
        let (whole, mut rest) = digits(rest);
        if whole.is_empty() {
            return Err(at(rest));
        }
        if let [b'0', more @ ..] = whole
            && !more.is_empty()
        {
            return Err(at(rest).saturating_sub(more.len()));
        }
        let mut number =
            Self { negative, whole, fraction: &[], exponent: &[], exponent_negative: false };
        if let (true, after_point) = strip(rest, b".") {
            (number.fraction, rest) = digits(after_point);
            if number.fraction.is_empty() {
                return Err(at(rest));
            }
        }
        if let (true, after_e) = strip(rest, b"eE") {
            let (_, after_plus) = strip(after_e, b"+");
            let (minus, after_sign) = strip(after_e, b"-");
            number.exponent_negative = minus;
            (number.exponent, rest) = digits(if minus { after_sign } else { after_plus });
            if number.exponent.is_empty() {
                return Err(at(rest));
            }
        }
        Ok((number, at(rest)))
    }

    /// Appends the canonical text: `0`, or the significant digits and the power of ten.
    pub(super) fn write(&self, text: &mut Vec<u8>) -> Result<(), JsonErrorKind> {
        // The digits are `whole` and `fraction` in one row; zeros go at both ends of the row.
        let fraction = trim_end(self.fraction);
        let whole = if fraction.is_empty() { trim_end(self.whole) } else { self.whole };
        let whole = trim_start(whole);
        let fraction_digits = if whole.is_empty() { trim_start(fraction) } else { fraction };
        if whole.is_empty() && fraction_digits.is_empty() {
            text.push(b'0');
            return Ok(());
        }
        // With a fraction left the last digit stands behind the point, else zeros were cut.
        let zeros = self.whole.len().saturating_sub(trim_end(self.whole).len());
        let shift = if fraction.is_empty() {
            length(zeros)
        } else {
            length(fraction.len()).saturating_neg()
        };
        let exponent = self.exponent(shift).ok_or(JsonErrorKind::Exponent)?;
        if self.negative {
            text.push(b'-');
        }
        text.extend_from_slice(whole);
        text.extend_from_slice(fraction_digits);
        write_exponent(exponent, text);
        Ok(())
    }

    /// The exponent as written, shifted. While it is read it stops growing long after it has left
    /// the range permanently.
    fn exponent(&self, shift: i64) -> Option<i64> {
        if self.exponent.is_empty() {
            return Some(shift);
        }
        let value = self.exponent.iter().fold(0_i128, |value, digit| {
            let digit = i128::from(digit.saturating_sub(b'0'));
            value.saturating_mul(10).saturating_add(digit).min(i128::MAX / 100)
        });
        let value = if self.exponent_negative { value.saturating_neg() } else { value };
        i64::try_from(value.saturating_add(i128::from(shift))).ok()
    }
}

/// Digits that are appended to a text, without the zeros before the first that is none.
struct DigitWriter<'a> {
    text: &'a mut Vec<u8>,
    /// Whether there was a digit that is no zero.
    significant: bool,
    /// How many zeros there were after the last such digit.
    zeros: usize,
}

impl DigitWriter<'_> {
    /// Appends the digits at the start of the bytes and returns what follows them.
    #[inline]
    fn digits<'a>(&mut self, mut bytes: &'a [u8]) -> &'a [u8] {
        while let [digit @ b'0'..=b'9', rest @ ..] = bytes {
            bytes = rest;
            let zero = *digit == b'0';
            self.zeros = if zero { self.zeros.saturating_add(1) } else { 0 };
            self.significant |= !zero;
            if self.significant {
                self.text.push(*digit);
            }
        }
        bytes
    }
}

fn write_exponent(exponent: i64, text: &mut Vec<u8>) {
    match u8::try_from(exponent.unsigned_abs()) {
        Ok(0) => {}
        Ok(digit @ 1..=9) if exponent < 0 => text.extend([b'e', b'-', b'0' | digit]),
        Ok(digit @ 1..=9) => text.extend([b'e', b'0' | digit]),
        _ => {
            // Writing to a vector cannot fail.
            let _ = write!(text, "e{exponent}");
        }
    }
}

/// No length in memory is larger than that.
fn length(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Whether the first byte is one of these, and what follows if so.
fn strip<'a>(bytes: &'a [u8], wanted: &[u8]) -> (bool, &'a [u8]) {
    match bytes.split_first() {
        Some((first, rest)) if wanted.contains(first) => (true, rest),
        _ => (false, bytes),
    }
}

fn digits(bytes: &[u8]) -> (&[u8], &[u8]) {
    let count = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    bytes.split_at_checked(count).unwrap_or((bytes, &[]))
}

fn trim_start(mut digits: &[u8]) -> &[u8] {
    while let [b'0', rest @ ..] = digits {
        digits = rest;
    }
    digits
}

fn trim_end(mut digits: &[u8]) -> &[u8] {
    while let [rest @ .., b'0'] = digits {
        digits = rest;
    }
    digits
}

/// The decimal digits of a number whose canonical text this is; the canonical text itself if they
/// would be too many.
pub(super) fn plain_decimal(canonical: &str) -> String {
    plain_digits(canonical).unwrap_or_else(|| canonical.to_owned())
}

fn plain_digits(canonical: &str) -> Option<String> {
    let (digits, exponent) = canonical.split_once('e').unwrap_or((canonical, "0"));
    let exponent: i64 = exponent.parse().ok()?;
    let unsigned = digits.strip_prefix('-').unwrap_or(digits);
    let sign = if unsigned.len() < digits.len() { "-" } else { "" };
    let shift = usize::try_from(exponent.unsigned_abs()).ok()?;
    if unsigned.len().saturating_add(shift) > NUMBER_DIGITS_MAX {
        return None;
    }
    if exponent >= 0 {
        return Some([digits, &"0".repeat(shift)].concat());
    }
    // At least one digit stands before the point.
    let missing = shift.saturating_add(1).saturating_sub(unsigned.len());
    let padded = ["0".repeat(missing).as_str(), unsigned].concat();
    let (whole, fraction) = padded.split_at_checked(padded.len().saturating_sub(shift))?;
    Some([sign, whole, ".", fraction].concat())
}
