//! What is wrong with a configuration: everything at once, each with its place.

use std::{fmt, ops::Range};

/// Everything that is wrong with a configuration.
///
/// It prints as a report: for each mistake the place, what is wrong, and the line itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    text: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ConfigError {}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// These bytes of the file.
    File(Range<usize>),
    /// This word of the command line.
    Flag(&'static str),
    /// Nowhere: it is missing.
    Nowhere,
}

#[derive(Debug, PartialEq, Eq)]
struct Mistake {
    place: Place,
    message: String,
    /// Whether what stands there may be a secret.
    secret: bool,
}

/// What was found wrong so far.
#[derive(Debug)]
pub(super) struct Report<'a> {
    /// The file's name, if there is one.
    file: Option<&'a str>,
    source: &'a str,
    mistakes: Vec<Mistake>,
}

impl<'a> Report<'a> {
    pub(super) fn new(file: Option<&'a str>, source: &'a str) -> Self {
        Self { file, source, mistakes: Vec::new() }
    }

    /// Notes a mistake. What several routes inherit is noted once.
    pub(super) fn note(&mut self, place: &Place, message: impl Into<String>) {
        self.push(Mistake { place: place.clone(), message: message.into(), secret: false });
    }

    /// Notes a mistake in what may be a secret: the line is not shown.
    pub(super) fn note_secret(&mut self, place: &Place, message: impl Into<String>) {
        self.push(Mistake { place: place.clone(), message: message.into(), secret: true });
    }

    fn push(&mut self, mistake: Mistake) {
        if !self.mistakes.contains(&mistake) {
            self.mistakes.push(mistake);
        }
    }

    /// The value, unless something was wrong.
    pub(super) fn finish<T>(mut self, value: Option<T>) -> Result<T, ConfigError> {
        match value {
            Some(value) if self.mistakes.is_empty() => Ok(value),
            _ => {
                // The command line first, then the file from top to bottom.
                self.mistakes.sort_by_key(|mistake| match &mistake.place {
                    Place::Flag(_) => (0, 0),
                    Place::File(span) => (1, span.start),
                    Place::Nowhere => (2, 0),
                });
                Err(ConfigError { text: self.text() })
            }
        }
    }

    /// Whether what may be a secret stands on this line: then none of its mistakes shows it.
    fn hides(&self, line: usize) -> bool {
        self.mistakes.iter().any(|mistake| match &mistake.place {
            Place::File(span) => mistake.secret && Spot::of(self.source, span).line == line,
            Place::Flag(_) | Place::Nowhere => false,
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for mistake in &self.mistakes {
            let message = &mistake.message;
            match (&mistake.place, self.file) {
                (Place::Flag(flag), _) => text.push_str(&format!("{flag}: {message}\n")),
                (Place::File(span), Some(file)) => {
                    let spot = Spot::of(self.source, span);
                    let (line, column) = (spot.line, spot.column);
                    text.push_str(&format!("{file}:{line}:{column}: {message}\n"));
                    text.push_str(&spot.excerpt(self.hides(line)));
                }
                (_, Some(file)) => text.push_str(&format!("{file}: {message}\n")),
                (_, None) => text.push_str(&format!("{message}\n")),
            }
        }
        text.push_str("run `semel config default` for every setting with its default");
        text
    }
}

/// A place in a text, as people count: from one, in characters.
struct Spot<'a> {
    line: usize,
    column: usize,
    /// The line itself.
    text: &'a str,
    /// How many characters of the line are meant, at least one.
    width: usize,
}

impl<'a> Spot<'a> {
    fn of(source: &'a str, span: &Range<usize>) -> Self {
        let before = source.get(..span.start).unwrap_or(source);
        let begins = before.rfind('\n').map_or(0, |newline| newline.saturating_add(1));
        let from_line = source.get(begins..).unwrap_or_default();
        let text = from_line.split(['\n', '\r']).next().unwrap_or_default();
        let column = before.get(begins..).unwrap_or_default().chars().count();
        let meant = source.get(span.clone()).unwrap_or_default();
        let meant = meant.split(['\n', '\r']).next().unwrap_or_default();
        Self {
            line: before.matches('\n').count().saturating_add(1),
            column: column.saturating_add(1),
            text,
            width: meant.chars().count().max(1),
        }
    }

    /// The line, and below it what is meant.
    fn excerpt(&self, secret: bool) -> String {
        if secret || may_hold_secret(self.text) {
            return String::new();
        }
        let line = self.text.replace('\t', " ");
        let indent = " ".repeat(self.column.saturating_sub(1));
        format!("    {line}\n    {indent}{}\n", "^".repeat(self.width))
    }
}

/// Whether a line may hold a secret that somebody wrote where only its place belongs. Such a line
/// is not shown, whatever is wrong with it.
fn may_hold_secret(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    let has_password = |rest: &str| {
        let host = rest.split(['/', '"', '\'']).next();
        host.is_some_and(|host| host.contains('@'))
    };
    // What stands before each sign that a value follows.
    let mut names = line.match_indices(['=', ':']).filter_map(|(sign, _)| {
        let before = line.get(..sign)?.trim_end_matches([' ', '\t', '"', '\'']);
        before.rsplit(|c: char| !c.is_alphanumeric() && c != '_' && c != '-').next()
    });
    line.split("://").skip(1).any(has_password) || names.any(is_secret)
}

/// Whether a setting of this name would hold a secret, and not only say where one is.
fn is_secret(name: &str) -> bool {
    const SECRETS: [&str; 7] =
        ["token", "secret", "password", "passwd", "passphrase", "apikey", "api_key"];
    let says_where = name.ends_with("_env") || name.ends_with("_file");
    !says_where && SECRETS.iter().any(|secret| name.contains(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_may_hold_a_secret_is_told_from_others() {
        for line in [
            "operator_token = \"hunter2\"",
            "  'secret'= hunter2",
            "password: hunter2",
            "api = { listen = \"off\", \"db-password\" = 'hunter2' }",
            "store = \"postgres://semel:hunter2@db\"",
            "upstream = 'http://hunter2@a/b'",
            "upstream = 'http://a/?token=hunter2'",
        ] {
            assert!(may_hold_secret(line), "{line}");
        }
        for line in [
            "secret_env = \"SEMEL_SECRET\"",
            "secret_file = \"semel.secret\"",
            "operator_token_env = \"TOKEN\"",
            "match = \"POST /v1/tokens/**\"",
            "upstream = \"http://a/@b\"",
            "caller = [{ credential = \"X-Api-Key\" }]",
        ] {
            assert!(!may_hold_secret(line), "{line}");
        }
    }
}
