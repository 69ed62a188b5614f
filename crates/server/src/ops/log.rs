//! The log: one line for each event, on stderr, as text or as JSON.
//!
//! Whoever logs never waits: lines go to a bounded buffer, and a thread writes them out. Text that
//! a client sent is escaped, so that nobody can write lines of their own into the log.

mod line;
mod pending;
mod request;
mod writer;

use std::{cell::RefCell, io::IsTerminal as _};

use jiff::Timestamp;
use tracing::{
    Event, Metadata, Subscriber,
    level_filters::LevelFilter,
    span::{Attributes, Id, Record},
    subscriber::Interest,
};

use self::{line::Maker, writer::Writer};
pub(crate) use self::{pending::PendingLine, request::RequestLine, writer::Flush};

/// How a line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people: time, level, words, then what belongs to it.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// How important an event must be to be logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Level {
    /// Nothing.
    Off,
    /// What needs a person.
    Error,
    /// What may need one.
    Warn,
    /// Every guarded request too.
    #[default]
    Info,
    /// What the program does besides.
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
pub(crate) fn init(format: Format, level: Level) -> anyhow::Result<Flush> {
    let style = match format {
        Format::Json => Style::Json,
        Format::Text if is_colourful() => Style::Colour,
        Format::Text => Style::Plain,
    };
    let (writer, flush) = Writer::start(std::io::stderr())?;
    let log = Log { style, level: level.filter(), writer };
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

/// Whether stderr is a terminal whose user did not ask for no colour.
fn is_colourful() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && std::io::stderr().is_terminal()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Plain,
    Colour,
    Json,
}

/// What hears of every event. There are no spans: a line stands by itself.
#[derive(Debug)]
struct Log {
    style: Style,
    level: LevelFilter,
    writer: Writer,
}

thread_local! {
    static MAKER: RefCell<Maker> = const { RefCell::new(Maker::new()) };
}

impl Subscriber for Log {
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
        MAKER.with(|maker| {
            // An event inside an event, from a value that logs while it is written, is left out.
            if let Ok(mut maker) = maker.try_borrow_mut() {
                self.writer.write(maker.make(self.style, Timestamp::now(), event).as_bytes());
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
