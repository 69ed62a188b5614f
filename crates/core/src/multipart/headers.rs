//! The headers of a part, and what counts of them.

use std::borrow::Cow;

use memchr::memmem;

use super::params::{ParameterizedValue, is_token};
use super::{MultipartError, PART_HEADER_BYTES_MAX, Part, frame, number};

/// The fields that count, in the order in which they are hashed.
const NAMES: [&str; 3] = ["content-disposition", "content-transfer-encoding", "content-type"];

/// A header field of a part that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartHeader<'a> {
    /// Its name, in lower case.
    pub name: &'static str,
    /// Its value as it was sent, unfolded, without white space around it.
    pub value: Cow<'a, [u8]>,
}

/// Cuts a part into its headers and its content.
pub(super) fn part(bytes: &[u8], part: usize) -> Result<Part<'_>, MultipartError> {
    if let Some(content) = bytes.strip_prefix(b"\r\n") {
        return Ok(Part { fields: Vec::new(), content });
    }
    let head_max = PART_HEADER_BYTES_MAX.saturating_add(b"\r\n\r\n".len());
    let head = bytes.get(..head_max).unwrap_or(bytes);
    let Some(end) = memmem::find(head, b"\r\n\r\n") else {
        let too_large = head.len() < bytes.len();
        return Err(if too_large {
            MultipartError::HeadersTooLarge { part }
        } else {
            MultipartError::Headers { part }
        });
    };
    let fields = bytes.get(..end).and_then(fields).ok_or(MultipartError::Headers { part })?;
    let content = bytes.get(end.saturating_add(4)..).unwrap_or_default();
    Ok(Part { fields, content })
}

/// The fields that count, `None` if a line is not a header field.
///
/// The lines that do not count are checked as well: what is one line to us and two to a reader
/// that takes a bare line feed for an end would be a field that we overlooked.
fn fields(block: &[u8]) -> Option<Vec<PartHeader<'_>>> {
    let mut fields: Vec<PartHeader<'_>> = Vec::new();
    let mut rest = Some(block);
    // Whether a folded line may follow, and whether it belongs to the last of the fields.
    let mut folding = None;
    while let Some(bytes) = rest {
        let (line, after) = match memmem::find(bytes, b"\r\n") {
            Some(end) => (bytes.get(..end)?, bytes.get(end.saturating_add(2)..)),
            None => (bytes, None),
        };
        rest = after;
        if line.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
            return None;
        }
        if let [b' ' | b'\t', ..] = line {
            if folding? {
                // Unfolding takes away the line break and nothing else (RFC 5322, section 2.2.3).
                fields.last_mut()?.value.to_mut().extend_from_slice(line);
            }
            continue;
        }
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at_checked(colon)?;
        if !is_token(name) {
            return None;
        }
        let name = NAMES.into_iter().find(|known| known.as_bytes().eq_ignore_ascii_case(name));
        folding = Some(name.is_some());
        if let Some(name) = name {
            fields.push(PartHeader { name, value: Cow::Borrowed(value.get(1..)?) });
        }
    }
    for field in &mut fields {
        field.value = match &field.value {
            Cow::Borrowed(value) => Cow::Borrowed(value.trim_ascii()),
            Cow::Owned(value) => Cow::Owned(value.trim_ascii().to_vec()),
        };
    }
    // A stable sort: a field that was sent twice keeps its order.
    fields.sort_by_key(|field| field.name);
    Some(fields)
}

/// Appends the fields in canonical form.
pub(super) fn write(fields: &[PartHeader<'_>], out: &mut Vec<u8>) {
    number(fields.len(), out);
    for field in fields {
        frame(field.name.as_bytes(), out);
        let Some(mut value) = ParameterizedValue::parse(&field.value) else {
            out.push(0);
            frame(&field.value, out);
            continue;
        };
        out.push(1);
        frame(&value.essence.to_ascii_lowercase(), out);
        number(value.params.len(), out);
        value.params.sort_by_cached_key(|(name, _)| name.to_ascii_lowercase());
        for (name, value) in value.params {
            frame(&name.to_ascii_lowercase(), out);
            frame(value, out);
        }
    }
}
