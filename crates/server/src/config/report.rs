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
                    text.push_str(&spot.excerpt(mistake.secret));
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
    let url_with_password = line
        .split("://")
        .skip(1)
        .any(|rest| rest.split(['/', '"', '\'']).next().is_some_and(|host| host.contains('@')));
    let words =
        line.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
    let names_secret = words.into_iter().any(|word| {
        let named = ["token", "secret", "password", "passwd", "passphrase", "apikey", "api_key"];
        let only_its_place = word.ends_with("_env") || word.ends_with("_file");
        named.iter().any(|name| word.contains(name)) && !only_its_place
    });
    url_with_password || names_secret
}
