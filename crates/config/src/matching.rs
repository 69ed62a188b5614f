//! Route patterns: parses and matches `POST,PATCH api.example.com/v1/payments/**`.

use std::fmt;

use http::Method;

use super::{Match, Segment, normal_path, pattern, readings::readings_of_pattern, suggest};

/// Maximum number of segments of a pattern, so that matching stays cheap.
const SEGMENTS_MAX: usize = 64;

/// Methods that a misspelt one is compared with.
const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"];

impl Match {
    /// Reads what follows `match =`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split_ascii_whitespace();
        let (methods, has_default_methods, place) = match (words.next(), words.next(), words.next())
        {
            (Some(methods), Some(place), None) => (parse_methods(methods), false, place),
            (Some(place), None, None) => (Ok(vec![Method::POST, Method::PATCH]), true, place),
            (None, ..) => return Err("write what to match: \"POST /v1/payments/**\"".to_owned()),
            _ => {
                return Err(
                    "write methods, one space, then the path: \"POST,PATCH /v1\"".to_owned()
                );
            }
        };
        match (methods, parse_place(place)) {
            (Ok(methods), Ok((host, path))) => {
                Ok(Self { methods, has_default_methods, host, path })
            }
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
            (Err(error), Err(more)) if error.ends_with('?') => Err(format!("{error} Also, {more}")),
            (Err(error), Err(more)) => Err(format!("{error}; also, {more}")),
        }
    }

    /// Applies the default methods. A route with a signature matches all methods if none is
    /// written, so that no method bypasses the signature.
    pub(super) fn with_default_methods(mut self, verifies: bool) -> Self {
        if self.has_default_methods && verifies {
            self.methods.clear();
        }
        self.has_default_methods = false;
        self
    }

    /// Whether the route takes a request. The path is [normal](normal_path) already; the host is
    /// as it was sent. Nothing is allocated, and the time is at worst the product of the lengths.
    ///
    /// A slash at the end does not matter: most services take `/payments/` for `/payments`, and a
    /// charge must not lose its guard by it.
    pub fn takes(&self, method: &Method, host: Option<&str>, path: &str) -> bool {
        (self.methods.is_empty() || self.methods.contains(method))
            && self.takes_host(host)
            && takes_path(&self.path, path)
    }

    /// Whether the route takes a method, in whatever case it is written.
    pub fn takes_method_loosely(&self, method: &Method) -> bool {
        self.methods.is_empty() || contains_loosely(&self.methods, method)
    }

    /// The paths that the route's own may be read as: most have one.
    pub fn path_readings(&self) -> Vec<Vec<Segment>> {
        let path = Self { host: None, ..self.clone() }.place_text();
        readings_of_pattern(&path).iter().map(|path| parse_segments(path)).collect()
    }

    /// Whether the path contains a star.
    pub fn has_star(&self) -> bool {
        self.path
            .iter()
            .any(|segment| !matches!(segment, Segment::Text(text) if !text.contains('*')))
    }

    /// Whether the route takes requests for a host.
    pub fn takes_host(&self, host: Option<&str>) -> bool {
        let Some(wanted) = &self.host else { return true };
        let Some(host) = host.map(without_port) else { return false };
        match wanted.strip_prefix('*') {
            Some(end) => split_end(host, end.len())
                .is_some_and(|(name, tail)| !name.is_empty() && tail.eq_ignore_ascii_case(end)),
            None => host.eq_ignore_ascii_case(wanted),
        }
    }

    /// Whether this route matches everything that `other` matches. It has no false positives, but
    /// may have false negatives.
    pub fn covers(&self, other: &Self) -> bool {
        let methods = self.methods.is_empty()
            || !other.methods.is_empty()
                && other.methods.iter().all(|method| self.methods.contains(method));
        let host = match (&self.host, &other.host) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(mine), Some(theirs)) => match mine.strip_prefix('*') {
                Some(end) => theirs.len() > end.len() && theirs.ends_with(end),
                None => mine == theirs,
            },
        };
        methods && host && glob(&self.path, other.path.iter(), is_any, covers_segment)
    }

    /// The methods that a route guards. A safe method has nothing to guard, not even on a route for
    /// all methods.
    pub fn guarded_methods(&self) -> Vec<Method> {
        match &self.methods[..] {
            [] => vec![Method::POST, Method::PATCH, Method::PUT, Method::DELETE],
            methods => methods.to_vec(),
        }
    }

    /// The methods as they are written.
    pub fn methods_text(&self) -> String {
        if self.methods.is_empty() {
            return "*".to_owned();
        }
        let names: Vec<&str> = self.methods.iter().map(Method::as_str).collect();
        names.join(",")
    }

    /// Host and path as they are written.
    pub fn place_text(&self) -> String {
        let mut text = self.host.clone().unwrap_or_default();
        for segment in &self.path {
            text.push('/');
            text.push_str(match segment {
                Segment::Text(text) => text,
                Segment::One => "*",
                Segment::Any => "**",
            });
        }
        if self.path.is_empty() {
            text.push('/');
        }
        text
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.methods_text(), self.place_text())
    }
}

fn parse_methods(text: &str) -> Result<Vec<Method>, String> {
    if text == "*" {
        return Ok(Vec::new());
    }
    let mut methods = Vec::new();
    for name in text.split(',') {
        if name.is_empty() {
            return Err("methods are separated by one comma: \"POST,PATCH /v1\"".to_owned());
        }
        let upper = name.to_ascii_uppercase();
        if upper != name {
            return Err(format!("methods are written in capitals: `{upper}`"));
        }
        if !METHODS.contains(&name)
            && let Some(likely) = suggest::nearest(name, METHODS)
        {
            return Err(format!("there is no method `{name}`; did you mean `{likely}`?"));
        }
        let method = name.parse().map_err(|_| "this cannot be a method".to_owned())?;
        if !methods.contains(&method) {
            methods.push(method);
        }
    }
    Ok(methods)
}

/// Host and path.
fn parse_place(text: &str) -> Result<(Option<String>, Vec<Segment>), String> {
    pattern::refuse_foreign(text)?;
    let slash = text.find('/').ok_or("a path begins with a slash: \"POST /v1/payments\"")?;
    let (host, path) = text.split_at(slash);
    let host = if host.is_empty() { None } else { Some(parse_host(host)?) };
    Ok((host, parse_path(path)?))
}

fn parse_host(text: &str) -> Result<String, String> {
    let host = normal_host(text);
    if host.len() != text.len() {
        return Err(format!("a host is matched without its port: `{host}`"));
    }
    let name = host.strip_prefix("*.").unwrap_or(&host);
    if name.contains('*') {
        return Err("a host can have a star only at its beginning: `*.example.com`".to_owned());
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte);
    if name.is_empty() || !name.bytes().all(plain) {
        return Err("this cannot be a host; write \"POST api.example.com/v1/**\"".to_owned());
    }
    Ok(host)
}

fn parse_path(text: &str) -> Result<Vec<Segment>, String> {
    if text.contains(['?', '#']) {
        return Err("a route matches the path only, without a query".to_owned());
    }
    let segments = parse_segments(&normal_path(&encode_foreign(text)));
    if segments.len() > SEGMENTS_MAX {
        return Err(format!("a path has at most {SEGMENTS_MAX} segments"));
    }
    Ok(segments)
}

fn parse_segments(path: &str) -> Vec<Segment> {
    segments_of(path)
        .map(|segment| match segment {
            "*" => Segment::One,
            "**" => Segment::Any,
            text => Segment::Text(text.to_owned()),
        })
        .collect()
}

/// Percent-encodes non-ASCII characters, as they are sent.
fn encode_foreign(text: &str) -> String {
    use fmt::Write as _;

    let mut encoded = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii() {
            encoded.push(character);
            continue;
        }
        for byte in character.encode_utf8(&mut [0; 4]).bytes() {
            // Writing to a String cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// A host in lower case, without port and without dots at its end; the brackets of an IPv6
/// address stay.
fn normal_host(host: &str) -> String {
    without_port(host).to_ascii_lowercase()
}

fn without_port(host: &str) -> &str {
    let end = match host.find(']') {
        Some(bracket) => bracket.saturating_add(1),
        None => host.find(':').unwrap_or(host.len()),
    };
    host.get(..end).unwrap_or(host).trim_end_matches('.')
}

/// The text without its last `length` bytes, and those.
fn split_end(text: &str, length: usize) -> Option<(&str, &str)> {
    text.split_at_checked(text.len().checked_sub(length)?)
}

fn segments_of(path: &str) -> impl Iterator<Item = &str> + Clone {
    path.split('/').filter(|segment| !segment.is_empty())
}

/// Whether a path matches a pattern, segment by segment.
pub fn takes_path(wanted: &[Segment], path: &str) -> bool {
    takes_segments(wanted, path, takes_text)
}

/// The same, without regard to the case of ASCII.
pub fn takes_path_loosely(wanted: &[Segment], path: &str) -> bool {
    takes_segments(wanted, path, |wanted, text| {
        let is_star = |byte: &u8| *byte == b'*';
        glob(wanted.as_bytes(), text.bytes(), is_star, |one, byte| one.eq_ignore_ascii_case(&byte))
    })
}

fn takes_segments(wanted: &[Segment], path: &str, takes: impl Fn(&str, &str) -> bool) -> bool {
    glob(wanted, segments_of(path), is_any, |wanted, segment| match wanted {
        Segment::Text(text) => takes(text, segment),
        Segment::One | Segment::Any => true,
    })
}

/// Whether a method is among these, in whatever case it is written.
pub fn contains_loosely(methods: &[Method], method: &Method) -> bool {
    methods.iter().any(|one| one.as_str().eq_ignore_ascii_case(method.as_str()))
}

fn is_any(segment: &Segment) -> bool {
    *segment == Segment::Any
}

/// Whether a segment matches every text that another matches. A star in the other is compared as a
/// literal character, which only a star matches.
fn covers_segment(segment: &Segment, other: &Segment) -> bool {
    match (segment, other) {
        (Segment::One, Segment::One | Segment::Text(_)) => true,
        (Segment::Text(text), Segment::Text(other)) => takes_text(text, other),
        (Segment::Text(_), Segment::One) | (_, Segment::Any) | (Segment::Any, _) => false,
    }
}

fn takes_text(wanted: &str, text: &str) -> bool {
    glob(wanted.as_bytes(), text.bytes(), |byte| *byte == b'*', |wanted, byte| *wanted == byte)
}

/// Whether a pattern matches all items, where some of its elements match any number of them.
///
/// Only the last such element ever needs to backtrack: if an earlier one could match more, the last
/// one could match the difference. So one backtracking point is enough, and the time is at worst
/// the product of the lengths.
fn glob<W, I: Iterator<Item: Copy> + Clone>(
    pattern: &[W],
    items: I,
    is_any: impl Fn(&W) -> bool,
    fits: impl Fn(&W, I::Item) -> bool,
) -> bool {
    let (mut wanted, mut left) = (pattern, items);
    let mut again: Option<(&[W], I)> = None;
    loop {
        let before = left.clone();
        match (wanted.split_first(), left.next()) {
            (Some((any, after)), _) if is_any(any) => {
                (wanted, left) = (after, before.clone());
                again = Some((after, before));
                continue;
            }
            (Some((one, after)), Some(item)) if fits(one, item) => {
                wanted = after;
                continue;
            }
            (None, None) => return true,
            _ => {}
        }
        let Some((after, rest)) = &mut again else { return false };
        if rest.next().is_none() {
            return false;
        }
        (wanted, left) = (after, rest.clone());
    }
}

#[cfg(test)]
mod tests;
