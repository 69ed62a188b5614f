//! Formats one line: time, level, message and fields.
//!
//! Every guarded request has a line, so formatting is cheap: one pass over the event into a reused
//! buffer, and text that needs no escape is copied as it is.

use std::fmt::{self, Debug, Write as _};

use jiff::Timestamp;
use tracing::{
    Event, Level, Metadata,
    field::{Field, Visit},
};

use super::LineStyle;
use crate::escape;

/// Formats the lines of one thread.
#[derive(Debug)]
pub(super) struct LineFormatter {
    text: String,
    /// The last formatted second, cached because most lines share it with the previous one.
    second: i64,
    until_second: String,
}

impl LineFormatter {
    pub(super) const fn new() -> Self {
        Self { text: String::new(), second: i64::MIN, until_second: String::new() }
    }

    /// A line, with its end.
    pub(super) fn format(&mut self, style: LineStyle, at: Timestamp, event: &Event<'_>) -> &str {
        self.begin(style, at, event.metadata());
        let mut line = FieldWriter { text: &mut self.text, style };
        event.record(&mut line);
        self.text.push_str(if style == LineStyle::Json { "}\n" } else { "\n" });
        &self.text
    }

    /// Time, level and, in JSON, target.
    fn begin(&mut self, style: LineStyle, at: Timestamp, about: &Metadata<'_>) {
        if at.as_second() != self.second {
            self.second = at.as_second();
            self.until_second = format!("{at:.0}");
            // The `Z`, which follows the fraction.
            self.until_second.pop();
        }
        let text = &mut self.text;
        text.clear();
        text.push_str(match style {
            LineStyle::Json => "{\"at\":\"",
            LineStyle::Colour => "\x1b[2m",
            LineStyle::Plain => "",
        });
        text.push_str(&self.until_second);
        // Writing to a String cannot fail, here and below.
        let _ = write!(text, ".{:06}Z", at.subsec_microsecond());
        match style {
            LineStyle::Json => {
                text.push_str("\",\"level\":\"");
                text.push_str(word(*about.level()));
                text.push_str("\",\"target\":\"");
                text.push_str(about.target());
                text.push('"');
            }
            LineStyle::Colour => {
                let level = about.level();
                let _ = write!(text, "\x1b[0m {}{level:5}\x1b[0m", colour(*level));
            }
            LineStyle::Plain => {
                let _ = write!(text, " {:5}", about.level());
            }
        }
    }
}

/// Writes the fields of an event. The message is always the first one.
struct FieldWriter<'a> {
    text: &'a mut String,
    style: LineStyle,
}

impl FieldWriter<'_> {
    /// A name and what begins its value.
    fn name(&mut self, name: &str) {
        match self.style {
            LineStyle::Json => {
                self.text.push_str(",\"");
                self.text.push_str(name);
                self.text.push_str("\":");
            }
            LineStyle::Plain | LineStyle::Colour => {
                self.text.push(' ');
                self.text.push_str(name);
                self.text.push('=');
            }
        }
    }

    /// The message, without quotes in text format.
    fn words(&mut self, words: &dyn Debug) {
        let quotes = self.style == LineStyle::Json;
        if quotes {
            self.name("message");
            self.text.push('"');
        } else {
            self.text.push(' ');
        }
        let _ = write!(EscapeWriter { text: self.text, quotes }, "{words:?}");
        if quotes {
            self.text.push('"');
        }
    }

    fn string(&mut self, name: &str, value: &dyn Debug) {
        self.name(name);
        self.text.push('"');
        let _ = write!(EscapeWriter { text: self.text, quotes: true }, "{value:?}");
        self.text.push('"');
    }

    fn number(&mut self, name: &str, value: impl fmt::Display) {
        self.name(name);
        let _ = write!(self.text, "{value}");
    }
}

impl Visit for FieldWriter<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        // Most values are plain words, and are easier to read and to search without quotes.
        if self.style != LineStyle::Json && !value.is_empty() && value.bytes().all(is_plain) {
            self.name(field.name());
            self.text.push_str(value);
        } else {
            self.string(field.name(), &format_args!("{value}"));
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.number(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.number(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.number(field.name(), value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if value.is_finite() {
            self.number(field.name(), format_args!("{value:.3}"));
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.words(value);
        } else {
            self.string(field.name(), value);
        }
    }
}

/// Escapes text as in JSON strings.
struct EscapeWriter<'a> {
    text: &'a mut String,
    /// Whether it is written between quotes, so that quotes are escaped too.
    quotes: bool,
}

impl fmt::Write for EscapeWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if text.bytes().all(|byte| is_plain(byte) || byte == b' ') {
            self.text.push_str(text);
            return Ok(());
        }
        for c in text.chars() {
            match c {
                '"' | '\\' if self.quotes => self.text.extend(['\\', c]),
                c => escape::push(self.text, c),
            }
        }
        Ok(())
    }
}

/// What needs neither quotes nor an escape.
const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\' | b'=')
}

/// The level as JSON has it.
const fn word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

const fn colour(level: Level) -> &'static str {
    match level {
        Level::ERROR => "\x1b[31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        Level::DEBUG | Level::TRACE => "\x1b[34m",
    }
}
