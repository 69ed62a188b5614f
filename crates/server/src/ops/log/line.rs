//! One line: when, how important, what, and what belongs to it.

use std::fmt::{self, Debug, Write as _};

use jiff::Timestamp;
use tracing::{
    Event, Level, Metadata,
    field::{Field, Visit},
};

use super::Style;
use crate::ops::escape;

/// A line that is being written. Its end is written by [`Line::finish`].
pub(super) struct Line<'a> {
    text: &'a mut String,
    style: Style,
}

impl<'a> Line<'a> {
    /// Begins a line with its time, level and target.
    pub(super) fn begin(
        text: &'a mut String,
        style: Style,
        at: Timestamp,
        about: &Metadata<'_>,
    ) -> Self {
        let (level, target) = (*about.level(), about.target());
        // Writing to a String cannot fail, here and below.
        let _ = match style {
            Style::Json => {
                write!(text, r#"{{"at":"{at:.6}","level":"{}","target":"{target}""#, word(level))
            }
            Style::Colour => {
                let colour = colour(level);
                write!(text, "\x1b[2m{at:.3}\x1b[0m {colour}{level:5}\x1b[0m")
            }
            Style::Plain => write!(text, "{at:.3} {level:5}"),
        };
        Self { text, style }
    }

    /// Writes what an event says, and the end of the line.
    pub(super) fn finish(mut self, event: &Event<'_>) {
        // The words come first, whatever else was written before them in the code.
        event.record(&mut Words(&mut self));
        event.record(&mut Rest(&mut self));
        self.text.push_str(if self.style == Style::Json { "}\n" } else { "\n" });
    }

    /// A name and what begins its value.
    fn name(&mut self, name: &str) {
        match self.style {
            Style::Json => {
                self.text.push_str(",\"");
                self.text.push_str(name);
                self.text.push_str("\":");
            }
            Style::Plain | Style::Colour => {
                self.text.push(' ');
                self.text.push_str(name);
                self.text.push('=');
            }
        }
    }

    fn words(&mut self, words: &str) {
        match self.style {
            Style::Json => {
                self.name("message");
                quoted(self.text, words);
            }
            Style::Plain | Style::Colour => {
                self.text.push(' ');
                self.text.push_str(&escape::line(words));
            }
        }
    }

    fn string(&mut self, name: &str, value: &str) {
        self.name(name);
        // Most values are plain words, and are easier to read and to search without quotes.
        if self.style != Style::Json && !value.is_empty() && value.bytes().all(is_plain) {
            self.text.push_str(value);
        } else {
            quoted(self.text, value);
        }
    }

    fn number(&mut self, name: &str, value: impl fmt::Display) {
        self.name(name);
        let _ = write!(self.text, "{value}");
    }
}

/// Writes the message.
struct Words<'a, 'b>(&'a mut Line<'b>);

impl Visit for Words<'_, '_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.0.words(value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0.words(&format!("{value:?}"));
        }
    }
}

/// Writes everything but the message.
struct Rest<'a, 'b>(&'a mut Line<'b>);

impl Visit for Rest<'_, '_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() != "message" {
            self.0.string(field.name(), value);
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.number(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.number(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.number(field.name(), value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if value.is_finite() {
            self.0.number(field.name(), format_args!("{value:.3}"));
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() != "message" {
            self.0.string(field.name(), &format!("{value:?}"));
        }
    }
}

/// What needs no quotes in a line of text.
const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\' | b'=')
}

/// A JSON string, which is also what a line of text quotes with.
fn quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c => escape::push(out, c),
        }
    }
    out.push('"');
}

/// The level as JSON has it.
fn word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

fn colour(level: Level) -> &'static str {
    match level {
        Level::ERROR => "\x1b[31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        Level::DEBUG | Level::TRACE => "\x1b[34m",
    }
}
