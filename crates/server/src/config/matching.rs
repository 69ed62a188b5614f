//! Which requests a route takes: `POST,PATCH api.example.com/v1/payments/**`, read and asked.

use std::fmt;

use http::Method;

use super::{Match, Piece, normal_path, pattern, spelling};

/// How many pieces a route's path may have, so that asking stays cheap.
const PIECES_MAX: usize = 64;

/// Methods that a misspelt one is compared with.
const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"];

impl Match {
    /// Reads what follows `match =`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split_ascii_whitespace();
        let (methods, implied, place) = match (words.next(), words.next(), words.next()) {
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
            (Ok(methods), Ok((host, path))) => Ok(Self { methods, implied, host, path }),
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
            (Err(error), Err(more)) if error.ends_with('?') => Err(format!("{error} Also, {more}")),
            (Err(error), Err(more)) => Err(format!("{error}; also, {more}")),
        }
    }

    /// What a route takes. One that verifies takes all methods if none is written, so that none
    /// gets around the signature.
    pub(super) fn settled(mut self, verifies: bool) -> Self {
        if self.implied && verifies {
            self.methods.clear();
        }
        self.implied = false;
        self
    }

    /// Whether the route takes a request. The path is [normal](normal_path) already; the host is
    /// as it was sent. Nothing is allocated, and the time is at worst the product of the lengths.
    ///
    /// A slash at the end does not matter: most services take `/payments/` for `/payments`, and a
    /// charge must not lose its guard by it.
    pub(crate) fn takes(&self, method: &Method, host: Option<&str>, path: &str) -> bool {
        (self.methods.is_empty() || self.methods.contains(method))
            && self.takes_host(host)
            && takes_path(&self.path, path)
    }

    fn takes_host(&self, host: Option<&str>) -> bool {
        let Some(wanted) = &self.host else { return true };
        let Some(host) = host.map(without_port) else { return false };
        match wanted.strip_prefix('*') {
            Some(end) => split_end(host, end.len())
                .is_some_and(|(name, tail)| !name.is_empty() && tail.eq_ignore_ascii_case(end)),
            None => host.eq_ignore_ascii_case(wanted),
        }
    }

    /// Whether this route takes everything that `other` takes, as far as that is plain to see: it
    /// never says so wrongly.
    pub(crate) fn covers(&self, other: &Self) -> bool {
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
        methods && host && glob(&self.path, other.path.iter(), is_any, covers_piece)
    }

    /// The methods that a route guards. A safe method has nothing to guard, not even on a route for
    /// all methods.
    pub(crate) fn guarded_methods(&self) -> Vec<Method> {
        match &self.methods[..] {
            [] => vec![Method::POST, Method::PATCH, Method::PUT, Method::DELETE],
            methods => methods.to_vec(),
        }
    }

    /// The methods as they are written.
    pub(crate) fn methods_text(&self) -> String {
        if self.methods.is_empty() {
            return "*".to_owned();
        }
        let names: Vec<&str> = self.methods.iter().map(Method::as_str).collect();
        names.join(",")
    }

    /// Host and path as they are written.
    pub(crate) fn place_text(&self) -> String {
        let mut text = self.host.clone().unwrap_or_default();
        for piece in &self.path {
            text.push('/');
            text.push_str(match piece {
                Piece::Text(text) => text,
                Piece::One => "*",
                Piece::Any => "**",
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
            && let Some(likely) = spelling::nearest(name, METHODS)
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
fn parse_place(text: &str) -> Result<(Option<String>, Vec<Piece>), String> {
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
        return Err("a star in a host stands at its beginning only: `*.example.com`".to_owned());
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte);
    if name.is_empty() || !name.bytes().all(plain) {
        return Err("this cannot be a host; write \"POST api.example.com/v1/**\"".to_owned());
    }
    Ok(host)
}

fn parse_path(text: &str) -> Result<Vec<Piece>, String> {
    if text.contains(['?', '#']) {
        return Err("a route matches the path only, without a query".to_owned());
    }
    let encoded = encode_foreign(text);
    let pieces: Vec<Piece> = pieces_of(&normal_path(&encoded))
        .map(|piece| match piece {
            "*" => Piece::One,
            "**" => Piece::Any,
            text => Piece::Text(text.to_owned()),
        })
        .collect();
    if pieces.len() > PIECES_MAX {
        return Err(format!("a path has at most {PIECES_MAX} pieces"));
    }
    Ok(pieces)
}

/// What is not ASCII comes over the wire percent-encoded.
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

/// A host in lower case, without port and without the dot of a full name; the brackets of an IPv6
/// address stay.
fn normal_host(host: &str) -> String {
    without_port(host).to_ascii_lowercase()
}

fn without_port(host: &str) -> &str {
    let end = match host.find(']') {
        Some(bracket) => bracket.saturating_add(1),
        None => host.find(':').unwrap_or(host.len()),
    };
    let host = host.get(..end).unwrap_or(host);
    host.strip_suffix('.').unwrap_or(host)
}

/// The text without its last `length` bytes, and those.
fn split_end(text: &str, length: usize) -> Option<(&str, &str)> {
    text.split_at_checked(text.len().checked_sub(length)?)
}

fn pieces_of(path: &str) -> impl Iterator<Item = &str> + Clone {
    path.split('/').filter(|piece| !piece.is_empty())
}

fn takes_path(wanted: &[Piece], path: &str) -> bool {
    glob(wanted, pieces_of(path), is_any, |wanted, piece| match wanted {
        Piece::Text(text) => takes_text(text, piece),
        Piece::One | Piece::Any => true,
    })
}

fn is_any(piece: &Piece) -> bool {
    *piece == Piece::Any
}

/// Whether a piece takes every text that another takes. A star of the other is taken as the
/// character that it is, which only a star matches.
fn covers_piece(piece: &Piece, other: &Piece) -> bool {
    match (piece, other) {
        (Piece::One, Piece::One | Piece::Text(_)) => true,
        (Piece::Text(text), Piece::Text(other)) => takes_text(text, other),
        (Piece::Text(_), Piece::One) | (_, Piece::Any) | (Piece::Any, _) => false,
    }
}

fn takes_text(wanted: &str, text: &str) -> bool {
    glob(wanted.as_bytes(), text.bytes(), |byte| *byte == b'*', |wanted, byte| *wanted == byte)
}

/// Whether a pattern takes all items, where some of its members stand for any number of them.
///
/// Only the last such member ever needs to take more: if those before it could be satisfied in
/// another way, the last could as well take what they would leave. So one place to come back to is
/// enough, and the time is at worst the product of the lengths.
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
