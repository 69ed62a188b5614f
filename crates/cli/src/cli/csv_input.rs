//! CSV files of others: names of columns, and what stands between columns.

use std::io::{self, BufRead, Chain, Cursor};

use anyhow::bail;

use semel_telemetry::escape;

/// How long the line of column names may be.
const HEAD_BYTES_MAX: usize = 64 << 10;

pub(super) fn typed_column(names: &[String], flag: &str, given: &str) -> anyhow::Result<usize> {
    let exact = names.iter().position(|name| name == given);
    let place = exact.or_else(|| names.iter().position(|name| plain(name) == plain(given)));
    let Some(place) = place else {
        bail!("--{flag}: there is no column `{given}`, but {}", listed(names))
    };
    Ok(place)
}

pub(super) fn usual_column(names: &[String], usual: &[&str]) -> Option<usize> {
    usual.iter().find_map(|usual| names.iter().position(|name| plain(name) == *usual))
}

/// A name as the usual ones are written: `Created at` is `created_at`.
fn plain(name: &str) -> String {
    let words = name.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("_").to_lowercase()
}

pub(super) fn listed(names: &[String]) -> String {
    let names: Vec<String> =
        names.iter().take(50).map(|name| format!("`{}`", escape::line(name))).collect();
    names.join(", ")
}

/// What stands between columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Separator(pub(super) u8);

impl Separator {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match (text, text.as_bytes()) {
            ("comma", _) => Ok(Self(b',')),
            ("semicolon", _) => Ok(Self(b';')),
            ("tab" | "\\t", _) => Ok(Self(b'\t')),
            (_, [one]) if !one.is_ascii_alphanumeric() && *one != b'"' => Ok(Self(*one)),
            _ => Err("this must be one character, or comma, semicolon or tab".to_owned()),
        }
    }

    /// The most frequent delimiter in the header line, outside quotes.
    fn of(line: &[u8]) -> Self {
        let mut counts = [(b',', 0_usize), (b';', 0), (b'\t', 0), (b'|', 0)];
        let mut quoted = false;
        for byte in line {
            quoted ^= *byte == b'"';
            for (separator, count) in &mut counts {
                *count += usize::from(!quoted && separator == byte);
            }
        }
        // Of equals the last counts, so the likeliest comes last.
        let most = counts.iter().rev().max_by_key(|(_, count)| *count);
        Self(most.map_or(b',', |(separator, _)| *separator))
    }
}

/// An input whose first line was looked at.
pub(super) type PeekedInput<R> = Chain<Cursor<Vec<u8>>, R>;

/// The whole input again, without a byte order mark, and what probably stands between its columns.
pub(super) fn head<R: BufRead>(mut input: R) -> anyhow::Result<(PeekedInput<R>, Separator)> {
    let mut line = Vec::new();
    let limit = u64::try_from(HEAD_BYTES_MAX).unwrap_or(u64::MAX);
    io::Read::take(&mut input, limit).read_until(b'\n', &mut line)?;
    if line.starts_with(&[0xFF, 0xFE]) || line.starts_with(&[0xFE, 0xFF]) {
        bail!("this is UTF-16; save it as UTF-8");
    }
    if line.len() == HEAD_BYTES_MAX {
        bail!("the first line is longer than {HEAD_BYTES_MAX} bytes; it must name the columns");
    }
    if line.starts_with(&[0xEF, 0xBB, 0xBF]) {
        line.drain(..3);
    }
    if line.trim_ascii().is_empty() {
        bail!("the first line is empty; it must name the columns");
    }
    let separator = Separator::of(&line);
    Ok((io::Read::chain(Cursor::new(line), input), separator))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn the_separator_is_what_the_first_line_has_most_of() {
        for (line, expected) in [
            ("a,b,c", b','),
            ("a;b;c,d", b';'),
            ("a\tb", b'\t'),
            ("a|b|c", b'|'),
            ("\"a;b;c;d\",e", b','),
            ("alone", b','),
            ("a,b;c", b','),
        ] {
            assert_eq!(Separator::of(line.as_bytes()), Separator(expected), "{line}");
        }
        for (text, expected) in [("tab", b'\t'), (";", b';'), ("semicolon", b';'), ("|", b'|')] {
            assert_eq!(Separator::parse(text), Ok(Separator(expected)));
        }
        for bad in ["", "ab", "a", "\"", "é"] {
            assert!(Separator::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_the_byte_order_mark_of_the_input_is_dropped() {
        let (mut all, separator) = head(&b"\xEF\xBB\xBFa;b\n1;2\n"[..]).unwrap();
        let mut text = String::new();
        all.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), separator), ("a;b\n1;2\n", Separator(b';')));
        for (bad, why) in [(&b"\xFF\xFEa\0"[..], "UTF-16"), (b"", "empty"), (b"\n1,2\n", "empty")] {
            assert!(head(bad).unwrap_err().to_string().contains(why));
        }
        assert!(head(&vec![b'a'; HEAD_BYTES_MAX + 1][..]).is_err());
    }
}
