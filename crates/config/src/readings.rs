//! Alternative readings of a path. Servers, proxies and frameworks normalize escapes, backslashes,
//! `;…`, dot segments and empty segments differently, so one spelling can reach several handlers.

use std::{borrow::Cow, collections::HashSet};

/// Maximum number of readings of a path that are checked. A path with one ambiguity has two to
/// four; several ambiguities multiply.
const READINGS_MAX: usize = 128;

/// Maximum total length of these readings.
const BYTES_MAX: usize = 128 * 1024;

/// Error: the path has too many readings to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyReadings;

/// Normalizations that some software applies to a path before it selects a handler. Each is applied
/// to the result of every other, because software applies them in any order and number.
const STEPS: [fn(&str) -> Cow<'_, str>; 9] = [
    decode_within_segments,
    decode,
    backslashes_as_slashes,
    without_parameters,
    without_dot_segments,
    with_slashes_merged,
    truncated_at_terminator,
    without_control_characters,
    without_authority,
];

/// Whether a path has only one reading, apart from letter case and extensions.
pub fn has_one_reading(path: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'%' | b';' | b'\\' | b'?' | b'#');
    path.bytes().all(plain) && !path.contains("//") && !path.contains("/.")
}

/// Whether a reading of a path matches, the path itself included. Each reading is also checked
/// without its extensions, because some frameworks select the response format by them.
pub fn any_reading(path: &str, matches: impl Fn(&str) -> bool) -> Result<bool, TooManyReadings> {
    find(path, |reading, budget| {
        if matches(reading) {
            return Ok(true);
        }
        for shorter in without_extensions(reading) {
            budget.consume(shorter)?;
            if matches(shorter) {
                return Ok(true);
            }
        }
        Ok(false)
    })
}

/// Remaining number of readings to check, and of their bytes.
struct ReadingBudget {
    readings: usize,
    bytes: usize,
}

impl ReadingBudget {
    /// The budget after the path itself, which is always checked.
    fn after(path: &str) -> Self {
        Self {
            readings: READINGS_MAX.saturating_sub(1),
            bytes: BYTES_MAX.saturating_sub(path.len()),
        }
    }

    fn consume(&mut self, reading: &str) -> Result<(), TooManyReadings> {
        self.readings = self.readings.checked_sub(1).ok_or(TooManyReadings)?;
        self.bytes = self.bytes.checked_sub(reading.len()).ok_or(TooManyReadings)?;
        Ok(())
    }
}

/// The readings of a route's own path.
pub(super) fn readings_of_pattern(path: &str) -> Vec<String> {
    let mut readings = Vec::new();
    // If there are too many readings, the first ones are compared.
    let _ = find(path, |reading, _| {
        readings.push(reading.to_owned());
        Ok(false)
    });
    readings
}

/// Whether a reading of a path matches. ASCII letters keep their case; other letters are folded.
fn find(
    path: &str,
    mut matches: impl FnMut(&str, &mut ReadingBudget) -> Result<bool, TooManyReadings>,
) -> Result<bool, TooManyReadings> {
    let mut budget = ReadingBudget::after(path);
    if matches(&fold_non_ascii(path), &mut budget)? {
        return Ok(true);
    }
    if has_one_reading(path) {
        return Ok(false);
    }
    let mut seen = HashSet::from([path.to_owned()]);
    let mut pending = vec![path.to_owned()];
    while let Some(reading) = pending.pop() {
        for step in STEPS {
            let Cow::Owned(next) = step(&reading) else { continue };
            if seen.contains(&next) {
                continue;
            }
            budget.consume(&next)?;
            if matches(&fold_non_ascii(&next), &mut budget)? {
                return Ok(true);
            }
            seen.insert(next.clone());
            pending.push(next);
        }
    }
    Ok(false)
}

/// Decodes every escape except those of separators, as software does that splits the path first.
fn decode_within_segments(path: &str) -> Cow<'_, str> {
    decode_where(path, |byte| !matches!(byte, b'/' | b'\\'))
}

fn decode(path: &str) -> Cow<'_, str> {
    decode_where(path, |_| true)
}

fn decode_where(path: &str, is_decoded: impl Fn(u8) -> bool) -> Cow<'_, str> {
    let mut decoded = Vec::new();
    let mut rest = path.as_bytes();
    let mut changed = false;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let escaped = match (byte, after) {
            (b'%', [high, low, ..]) => {
                super::path::escaped(*high, *low).filter(|byte| is_decoded(*byte))
            }
            _ => None,
        };
        if escaped.is_some() {
            changed = true;
            rest = after.get(2..).unwrap_or_default();
        }
        decoded.push(escaped.unwrap_or(byte));
    }
    // Invalid UTF-8 matches no route, so a lossy conversion is enough.
    if changed { Cow::Owned(String::from_utf8_lossy(&decoded).into_owned()) } else { path.into() }
}

fn backslashes_as_slashes(path: &str) -> Cow<'_, str> {
    if path.contains('\\') { path.replace('\\', "/").into() } else { path.into() }
}

/// Removes the parameters of each segment (`;…`), as servlets do.
fn without_parameters(path: &str) -> Cow<'_, str> {
    if !path.contains(';') {
        return path.into();
    }
    let segments = path.split('/').map(|segment| segment.split(';').next().unwrap_or_default());
    segments.collect::<Vec<_>>().join("/").into()
}

/// Removes dot segments as RFC 3986 does: `..` removes an empty segment too.
fn without_dot_segments(path: &str) -> Cow<'_, str> {
    let is_dots = |segment: &str| matches!(segment, "." | "..");
    if !path.split('/').any(is_dots) {
        return path.into();
    }
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." => {
                kept.pop();
            }
            segment => kept.push(segment),
        }
    }
    if path.rsplit('/').next().is_some_and(is_dots) {
        kept.push("");
    }
    format!("/{}", kept.join("/")).into()
}

fn with_slashes_merged(path: &str) -> Cow<'_, str> {
    if !path.contains("//") {
        return path.into();
    }
    let mut merged = String::with_capacity(path.len());
    for character in path.chars() {
        if character != '/' || !merged.ends_with('/') {
            merged.push(character);
        }
    }
    merged.into()
}

/// Truncates the path at a NUL, a line break, white space, `?` or `#`: some software ends a decoded
/// path there.
fn truncated_at_terminator(path: &str) -> Cow<'_, str> {
    let ends = |character: char| is_ignorable(character) || matches!(character, '?' | '#');
    match path.split_once(ends) {
        Some((before, _)) => before.to_owned().into(),
        None => path.into(),
    }
}

fn without_control_characters(path: &str) -> Cow<'_, str> {
    if path.contains(is_ignorable) { path.replace(is_ignorable, "").into() } else { path.into() }
}

fn is_ignorable(character: char) -> bool {
    character.is_control() || character.is_whitespace()
}

/// Removes the host of `//host/path`, as software does that parses a path as a relative reference.
fn without_authority(path: &str) -> Cow<'_, str> {
    let reference = path.strip_prefix("//").map(|rest| rest.trim_start_matches('/'));
    match reference.and_then(|rest| rest.find('/').and_then(|slash| rest.get(slash..))) {
        Some(rest) => rest.to_owned().into(),
        None => path.into(),
    }
}

/// Folds the case of non-ASCII letters. The comparison itself ignores the case of ASCII.
fn fold_non_ascii(path: &str) -> Cow<'_, str> {
    if path.is_ascii() { path.into() } else { path.to_uppercase().to_lowercase().into() }
}

/// The path without its extensions: `/a/b.c.json` gives `/a/b.c` and `/a/b`. Some frameworks read
/// an extension as the format of the response.
fn without_extensions(path: &str) -> impl Iterator<Item = &str> {
    let name = path.rfind('/').map_or(0, |slash| slash.saturating_add(1));
    let mut rest = path;
    std::iter::from_fn(move || {
        let dot = rest.rfind('.').filter(|dot| *dot > name)?;
        rest = rest.get(..dot)?;
        Some(rest)
    })
}

#[cfg(test)]
mod tests;
