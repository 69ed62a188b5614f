//! Formats one line: time, level, message, the fields of the event, then those of its spans.
//!
//! Every guarded request has a line, so formatting is cheap: one pass over the event, and text that
//! needs no escape is copied as it is. Text from clients is escaped, so that it cannot forge lines.

use std::fmt::{self, Debug, Write as _};

use anstyle::{AnsiColor, Style};
use jiff::Timestamp;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    field::RecordFields,
    fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields, format::Writer},
    registry::LookupSpan,
};

use crate::escape;

/// Maximum size of one value. What is longer is cut and ends with `…`.
const VALUE_BYTES_MAX: usize = 2 << 10;

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineStyle {
    Plain,
    Colour,
    Json,
}

impl<S, N> FormatEvent<S, N> for LineStyle
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (now, about) = (Timestamp::now(), event.metadata());
        let level = about.level();
        match self {
            Self::Json => {
                let (level, target) = (level_name(*level), about.target());
                write!(out, r#"{{"at":"{now:.6}","level":"{level}","target":"{target}""#)?;
            }
            Self::Colour => {
                let (dim, colour) = (Style::new().dimmed(), colour(*level));
                write!(out, "{dim}{now:.6}{dim:#} {colour}{level:5}{colour:#}")?;
            }
            Self::Plain => write!(out, "{now:.6} {level:5}")?,
        }
        self.format_fields(out.by_ref(), event)?;
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>() {
                out.write_str(fields)?;
            }
        }
        out.write_str(if *self == Self::Json { "}\n" } else { "\n" })
    }
}

impl<'w> FormatFields<'w> for LineStyle {
    fn format_fields<R: RecordFields>(&self, out: Writer<'w>, fields: R) -> fmt::Result {
        let mut writer = FieldWriter { out, style: *self, result: Ok(()) };
        fields.record(&mut writer);
        writer.result
    }
}

/// Writes fields, each with its separator. The message is always the first one.
struct FieldWriter<'a> {
    out: Writer<'a>,
    style: LineStyle,
    result: fmt::Result,
}

impl FieldWriter<'_> {
    /// A name and what begins its value.
    fn name(&mut self, name: &str) -> fmt::Result {
        match self.style {
            LineStyle::Json => write!(self.out, ",\"{name}\":"),
            LineStyle::Plain | LineStyle::Colour => write!(self.out, " {name}="),
        }
    }

    /// The message, without quotes in text format.
    fn message(&mut self, message: &dyn Debug) -> fmt::Result {
        if self.style == LineStyle::Json {
            return self.quoted("message", message);
        }
        self.out.write_char(' ')?;
        write!(EscapeWriter::new(&mut self.out, false), "{message:?}")
    }

    fn quoted(&mut self, name: &str, value: &dyn Debug) -> fmt::Result {
        self.name(name)?;
        self.out.write_char('"')?;
        write!(EscapeWriter::new(&mut self.out, true), "{value:?}")?;
        self.out.write_char('"')
    }

    fn unquoted(&mut self, name: &str, value: impl fmt::Display) -> fmt::Result {
        self.name(name)?;
        write!(self.out, "{value}")
    }

    fn after(&mut self, write: impl FnOnce(&mut Self) -> fmt::Result) {
        if self.result.is_ok() {
            self.result = write(self);
        }
    }
}

impl Visit for FieldWriter<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        // Most values are plain words, and are easier to read and to search without quotes.
        let is_word = self.style != LineStyle::Json
            && (1..=VALUE_BYTES_MAX).contains(&value.len())
            && value.bytes().all(is_plain);
        if is_word {
            self.after(|out| out.unquoted(field.name(), value));
        } else {
            self.after(|out| out.quoted(field.name(), &format_args!("{value}")));
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.after(|out| out.unquoted(field.name(), value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.after(|out| out.unquoted(field.name(), value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.after(|out| out.unquoted(field.name(), value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if value.is_finite() {
            self.after(|out| out.unquoted(field.name(), format_args!("{value:.3}")));
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.after(|out| out.message(value));
        } else {
            self.after(|out| out.quoted(field.name(), value));
        }
    }
}

/// Escapes text as in JSON strings, up to a limit.
struct EscapeWriter<'a, 'w> {
    out: &'a mut Writer<'w>,
    /// Whether it is written between quotes, so that quotes are escaped too.
    quotes: bool,
    bytes_left: usize,
}

impl<'a, 'w> EscapeWriter<'a, 'w> {
    const fn new(out: &'a mut Writer<'w>, quotes: bool) -> Self {
        Self { out, quotes, bytes_left: VALUE_BYTES_MAX }
    }
}

impl fmt::Write for EscapeWriter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.bytes_left == 0 {
            return Ok(());
        }
        let fits = text.floor_char_boundary(self.bytes_left);
        let (text, rest) = text.split_at(fits);
        if text.bytes().all(|byte| is_plain(byte) || byte == b' ') {
            self.out.write_str(text)?;
        } else {
            let mut escaped = String::with_capacity(text.len().saturating_mul(2));
            for c in text.chars() {
                match c {
                    '"' | '\\' if self.quotes => escaped.extend(['\\', c]),
                    c => escape::push(&mut escaped, c),
                }
            }
            self.out.write_str(&escaped)?;
        }
        self.bytes_left = self.bytes_left.saturating_sub(text.len());
        if !rest.is_empty() {
            self.bytes_left = 0;
            self.out.write_char('…')?;
        }
        Ok(())
    }
}

/// What needs neither quotes nor an escape.
const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\' | b'=')
}

/// The level as JSON has it.
const fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

const fn colour(level: Level) -> Style {
    let colour = match level {
        Level::ERROR => AnsiColor::Red,
        Level::WARN => AnsiColor::Yellow,
        Level::INFO => AnsiColor::Green,
        Level::DEBUG | Level::TRACE => AnsiColor::Blue,
    };
    colour.on_default()
}
