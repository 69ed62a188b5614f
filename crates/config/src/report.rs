//! Collects all errors of a configuration, each with its location.

use std::{fmt, ops::Range};

/// Everything that is wrong with a configuration.
///
/// It prints one entry per error: the location, the message and the line.
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
pub(super) enum ValueOrigin {
    /// These bytes of the file.
    File(Range<usize>),
    /// This command-line flag.
    Flag(&'static str),
    /// The value is missing.
    Missing,
}

#[derive(Debug, PartialEq, Eq)]
struct Diagnostic {
    origin: ValueOrigin,
    message: String,
    /// Whether the value may be a secret.
    secret: bool,
}

/// The errors found so far.
#[derive(Debug)]
pub(super) struct DiagnosticReport<'a> {
    /// The file's name, if there is one.
    file: Option<&'a str>,
    source: &'a str,
    /// Where a setting of this name belongs.
    expected_section: fn(&str) -> Option<&'static str>,
    diagnostics: Vec<Diagnostic>,
}

impl<'a> DiagnosticReport<'a> {
    pub(super) fn new(
        file: Option<&'a str>,
        source: &'a str,
        expected_section: fn(&str) -> Option<&'static str>,
    ) -> Self {
        Self { file, source, expected_section, diagnostics: Vec::new() }
    }

    /// Where a setting of this name belongs.
    pub(super) fn expected_section(&self, name: &str) -> Option<&'static str> {
        (self.expected_section)(name)
    }

    /// Adds an error. An error in a value that several routes inherit is added once.
    pub(super) fn add_error(&mut self, origin: &ValueOrigin, message: impl Into<String>) {
        self.push(Diagnostic { origin: origin.clone(), message: message.into(), secret: false });
    }

    /// Adds an error in a value that may be a secret: the line is not shown.
    pub(super) fn add_secret_error(&mut self, origin: &ValueOrigin, message: impl Into<String>) {
        self.push(Diagnostic { origin: origin.clone(), message: message.into(), secret: true });
    }

    fn push(&mut self, diagnostic: Diagnostic) {
        if !self.diagnostics.contains(&diagnostic) {
            self.diagnostics.push(diagnostic);
        }
    }

    /// The value, unless something was wrong.
    pub(super) fn finish<T>(mut self, value: Option<T>) -> Result<T, ConfigError> {
        match value {
            Some(value) if self.diagnostics.is_empty() => Ok(value),
            _ => {
                // The command line first, then the file from top to bottom.
                self.diagnostics.sort_by_key(|diagnostic| match &diagnostic.origin {
                    ValueOrigin::Flag(_) => (0, 0),
                    ValueOrigin::File(span) => (1, span.start),
                    ValueOrigin::Missing => (2, 0),
                });
                Err(ConfigError { text: self.text() })
            }
        }
    }

    /// Whether this line may contain a secret, so that no error shows it.
    fn hides(&self, line: usize) -> bool {
        self.diagnostics.iter().any(|diagnostic| match &diagnostic.origin {
            ValueOrigin::File(span) => {
                diagnostic.secret && SourceSpan::of(self.source, span).line == line
            }
            ValueOrigin::Flag(_) | ValueOrigin::Missing => false,
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for diagnostic in &self.diagnostics {
            let message = &diagnostic.message;
            match (&diagnostic.origin, self.file) {
                (ValueOrigin::Flag(flag), _) => text.push_str(&format!("{flag}: {message}\n")),
                (ValueOrigin::File(span), Some(file)) => {
                    let span_shown = SourceSpan::of(self.source, span);
                    let (line, column) = (span_shown.line, span_shown.column);
                    text.push_str(&format!("{file}:{line}:{column}: {message}\n"));
                    text.push_str(&span_shown.excerpt(self.hides(line)));
                }
                (_, Some(file)) => text.push_str(&format!("{file}: {message}\n")),
                (_, None) => text.push_str(&format!("{message}\n")),
            }
        }
        text.push_str("run `semel config default` for every setting with its default");
        text
    }
}

/// A location in a text: line and column from 1, in characters.
struct SourceSpan<'a> {
    line: usize,
    column: usize,
    /// The line itself.
    text: &'a str,
    /// Length of the marked text in characters, at least one.
    width: usize,
}

impl<'a> SourceSpan<'a> {
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

    /// The line with a marker below it.
    fn excerpt(&self, secret: bool) -> String {
        if secret || may_hold_secret(self.text) {
            return String::new();
        }
        let line = self.text.replace('\t', " ");
        let indent = " ".repeat(self.column.saturating_sub(1));
        format!("    {line}\n    {indent}{}\n", "^".repeat(self.width))
    }
}

/// Whether a line may contain a secret where only its location belongs. Such a line is never shown.
fn may_hold_secret(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    let has_password = |rest: &str| {
        let host = rest.split(['/', '"', '\'']).next();
        host.is_some_and(|host| host.contains('@'))
    };
    // The word before each `=` and `:`.
    let mut names = line.match_indices(['=', ':']).filter_map(|(sign, _)| {
        let before = line.get(..sign)?.trim_end_matches([' ', '\t', '"', '\'']);
        before.rsplit(|c: char| !c.is_alphanumeric() && c != '_' && c != '-').next()
    });
    line.split("://").skip(1).any(has_password) || names.any(is_secret)
}

/// Whether a setting of this name would contain a secret, rather than its location.
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
    fn lines_that_may_hold_a_secret_are_detected() {
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
