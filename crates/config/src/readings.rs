//! What a path may be read as. Servers, proxies and frameworks disagree about escapes, backslashes,
//! `;…`, dot segments and empty segments, so that one spelling can reach several handlers.

use std::{borrow::Cow, collections::HashSet};

/// How many readings of a path are looked at, and how many bytes in all. A path with one oddity has
/// two to four; more come from several oddities at once, and each step costs time.
const READINGS_MAX: usize = 128;
const BYTES_MAX: usize = 128 * 1024;

/// A path has more readings than are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyReadings;

/// What some software does to a path before it looks for a handler. Each is tried on the outcome of
/// each, because they are applied in any order and any number.
const STEPS: [fn(&str) -> Cow<'_, str>; 9] = [
    decode_within_segments,
    decode,
    backslashes_as_slashes,
    without_parameters,
    without_dot_segments,
    with_slashes_merged,
    until_terminator,
    without_control_characters,
    without_authority,
];

/// Whether a path has no reading but itself, in whatever case and without an extension.
pub fn has_one_reading(path: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'%' | b';' | b'\\' | b'?' | b'#');
    path.bytes().all(plain) && !path.contains("//") && !path.contains("/.")
}

/// Whether one of the readings of a path, itself among them, is wanted, with or without what may be
/// the format of an answer at its end.
pub fn any_reading(path: &str, wanted: impl Fn(&str) -> bool) -> Result<bool, TooManyReadings> {
    find(path, |reading, budget| {
        if wanted(reading) {
            return Ok(true);
        }
        for shorter in without_extensions(reading) {
            budget.take(shorter)?;
            if wanted(shorter) {
                return Ok(true);
            }
        }
        Ok(false)
    })
}

/// How many readings of a path are still looked at, and how many bytes.
struct ReadingBudget {
    readings: usize,
    bytes: usize,
}

impl ReadingBudget {
    /// What is left after the path itself, which is always looked at.
    fn after(path: &str) -> Self {
        Self {
            readings: READINGS_MAX.saturating_sub(1),
            bytes: BYTES_MAX.saturating_sub(path.len()),
        }
    }

    fn take(&mut self, reading: &str) -> Result<(), TooManyReadings> {
        self.readings = self.readings.checked_sub(1).ok_or(TooManyReadings)?;
        self.bytes = self.bytes.checked_sub(reading.len()).ok_or(TooManyReadings)?;
        Ok(())
    }
}

/// The readings of a route's own path.
pub(super) fn readings_of_pattern(path: &str) -> Vec<String> {
    let mut readings = Vec::new();
    // One with too many is compared as far as they were looked at.
    let _ = find(path, |reading, _| {
        readings.push(reading.to_owned());
        Ok(false)
    });
    readings
}

/// Whether one of the readings of a path is wanted. They are asked in whatever case ASCII has, and
/// with other letters in one case.
fn find(
    path: &str,
    mut wanted: impl FnMut(&str, &mut ReadingBudget) -> Result<bool, TooManyReadings>,
) -> Result<bool, TooManyReadings> {
    let mut budget = ReadingBudget::after(path);
    if wanted(&fold_non_ascii(path), &mut budget)? {
        return Ok(true);
    }
    if has_one_reading(path) {
        return Ok(false);
    }
    let mut seen = HashSet::from([path.to_owned()]);
    let mut waiting = vec![path.to_owned()];
    while let Some(reading) = waiting.pop() {
        for step in STEPS {
            let Cow::Owned(next) = step(&reading) else { continue };
            if seen.contains(&next) {
                continue;
            }
            budget.take(&next)?;
            if wanted(&fold_non_ascii(&next), &mut budget)? {
                return Ok(true);
            }
            seen.insert(next.clone());
            waiting.push(next);
        }
    }
    Ok(false)
}

/// Every escape decoded but those of separators, as by software that splits a path first.
fn decode_within_segments(path: &str) -> Cow<'_, str> {
    decode_where(path, |byte| !matches!(byte, b'/' | b'\\'))
}

fn decode(path: &str) -> Cow<'_, str> {
    decode_where(path, |_| true)
}

fn decode_where(path: &str, takes: impl Fn(u8) -> bool) -> Cow<'_, str> {
    let mut decoded = Vec::new();
    let mut rest = path.as_bytes();
    let mut changed = false;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let escaped = match (byte, after) {
            (b'%', [high, low, ..]) => {
                super::path::escaped(*high, *low).filter(|byte| takes(*byte))
            }
            _ => None,
        };
        if escaped.is_some() {
            changed = true;
            rest = after.get(2..).unwrap_or_default();
        }
        decoded.push(escaped.unwrap_or(byte));
    }
    // Bytes that are no text are as good as one another: they make no path of a route.
    if changed { Cow::Owned(String::from_utf8_lossy(&decoded).into_owned()) } else { path.into() }
}

fn backslashes_as_slashes(path: &str) -> Cow<'_, str> {
    if path.contains('\\') { path.replace('\\', "/").into() } else { path.into() }
}

/// Each segment without what follows its `;`, as servlets read a path.
fn without_parameters(path: &str) -> Cow<'_, str> {
    if !path.contains(';') {
        return path.into();
    }
    let segments = path.split('/').map(|segment| segment.split(';').next().unwrap_or_default());
    segments.collect::<Vec<_>>().join("/").into()
}

/// As RFC 3986 removes dot segments: an empty segment is one that `..` takes away.
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

/// Up to what ends a path for software that looks for the end of a decoded one: a NUL, a line
/// break, white space, or the beginning of a query or fragment.
fn until_terminator(path: &str) -> Cow<'_, str> {
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

/// `//host/path` is a path on a host for software that takes it as a relative reference.
fn without_authority(path: &str) -> Cow<'_, str> {
    let reference = path.strip_prefix("//").map(|rest| rest.trim_start_matches('/'));
    match reference.and_then(|rest| rest.find('/').and_then(|slash| rest.get(slash..))) {
        Some(rest) => rest.to_owned().into(),
        None => path.into(),
    }
}

/// Letters that are not ASCII in one case. Comparing ignores the case of ASCII.
fn fold_non_ascii(path: &str) -> Cow<'_, str> {
    if path.is_ascii() { path.into() } else { path.to_uppercase().to_lowercase().into() }
}

/// `/a/b.c.json`, without `.json` and without `.c.json`: some frameworks take the end of the last
/// segment for the format of the answer.
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
