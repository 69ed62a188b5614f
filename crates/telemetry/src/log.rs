//! The log: one line for each event, on stderr, as text or as JSON.
//!
//! Logging never blocks: lines go to a bounded buffer, and a thread writes them out. Text from
//! clients is escaped, so that it cannot forge log lines.

mod format;
mod request;
mod writer;

use std::cell::RefCell;

use jiff::Timestamp;
use tracing::{
    Event, Metadata, Subscriber,
    level_filters::LevelFilter,
    span::{Attributes, Id, Record},
    subscriber::Interest,
};

use self::{format::LineFormatter, writer::LogWriter};
pub use self::{request::RequestLine, writer::FlushGuard};
use super::is_colourful;

/// How a line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people: time, level, message, then fields.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// How important an event must be to be logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// Nothing.
    Off,
    /// What needs an operator.
    Error,
    /// What may need an operator.
    Warn,
    /// Also every guarded request.
    #[default]
    Info,
    /// Also internal activity.
    Debug,
    /// Everything.
    Trace,
}

/// Starts the log of this process. Lines that are still in the buffer are written out when the
/// guard is dropped.
///
/// # Errors
///
/// If there is a log already, or its thread cannot be started.
pub fn init(format: Format, level: Level) -> anyhow::Result<FlushGuard> {
    let style = match format {
        Format::Json => LineStyle::Json,
        Format::Text if is_colourful(&std::io::stderr()) => LineStyle::Colour,
        Format::Text => LineStyle::Plain,
    };
    let (writer, flush) = LogWriter::start(std::io::stderr())?;
    let log = LogSubscriber { style, level: level.filter(), writer };
    tracing::subscriber::set_global_default(log)?;
    Ok(flush)
}

impl Level {
    const fn filter(self) -> LevelFilter {
        match self {
            Self::Off => LevelFilter::OFF,
            Self::Error => LevelFilter::ERROR,
            Self::Warn => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
            Self::Trace => LevelFilter::TRACE,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineStyle {
    Plain,
    Colour,
    Json,
}

/// Writes a line for each event. There are no spans.
#[derive(Debug)]
struct LogSubscriber {
    style: LineStyle,
    level: LevelFilter,
    writer: LogWriter,
}

thread_local! {
    static FORMATTER: RefCell<LineFormatter> = const { RefCell::new(LineFormatter::new()) };
}

impl Subscriber for LogSubscriber {
    fn register_callsite(&self, about: &'static Metadata<'static>) -> Interest {
        if self.enabled(about) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn enabled(&self, about: &Metadata<'_>) -> bool {
        about.is_event() && *about.level() <= self.level
    }

    fn event(&self, event: &Event<'_>) {
        FORMATTER.with(|formatter| {
            // An event from a value that logs while it is formatted is dropped.
            if let Ok(mut formatter) = formatter.try_borrow_mut() {
                self.writer.write(formatter.format(self.style, Timestamp::now(), event).as_bytes());
            }
        });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[cfg(test)]
mod tests;
