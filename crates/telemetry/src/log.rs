//! The log: one line for each event, on stderr, as text or as JSON.
//!
//! Logging never blocks: lines go to a bounded queue, and a thread writes them out.

mod format;
mod output;
mod request;

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io, panic, thread,
};

use anstream::{AutoStream, ColorChoice};
use anyhow::Context as _;
use tracing::Subscriber;
use tracing_appender::non_blocking::{NonBlocking, WorkerGuard};
use tracing_subscriber::{
    EnvFilter, Layer, Registry, filter::LevelFilter, layer::SubscriberExt as _,
};

use self::format::LineStyle;
pub use self::{
    output::DroppedLines,
    request::{RequestLine, RequestOrigin, outcome_name, trace_id_of},
};
use crate::trace::TraceExport;

/// The target of the spans of a request. They are recorded only if a filter names it.
pub const SPAN_TARGET: &str = "semel::span";

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// Nothing.
    Off,
    /// What needs an operator.
    Error,
    /// What may need an operator.
    Warn,
    /// Also every guarded request.
    Info,
    /// Also internal activity.
    Debug,
    /// Everything.
    Trace,
}

/// Which lines are logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogFilter {
    /// All of a level and above.
    Level(Level),
    /// The directives of `RUST_LOG`, such as `warn,semel_gateway=debug`.
    Directives(String),
}

/// The log of this process, until it is dropped. Then the lines in the queue are written out.
#[derive(Debug)]
#[must_use]
pub struct LogHandle {
    dropped: DroppedLines,
    #[cfg(feature = "otlp")]
    _spans: Option<crate::otlp::SpanExport>,
    _guard: WorkerGuard,
}

impl LogHandle {
    /// Counts the lines that were dropped.
    pub fn dropped_lines(&self) -> DroppedLines {
        self.dropped.clone()
    }
}

/// Starts the log of this process. From here on a panic is a log line, too.
///
/// # Errors
///
/// If a directive is invalid, or there is a log already, or traces cannot be exported. Must not be
/// called in a runtime.
pub fn init(
    format: Format,
    filter: &LogFilter,
    traces: Option<&TraceExport>,
) -> anyhow::Result<LogHandle> {
    let style = match (format, AutoStream::choice(&io::stderr())) {
        (Format::Json, _) => LineStyle::Json,
        (Format::Text, ColorChoice::Never) => LineStyle::Plain,
        (Format::Text, _) => LineStyle::Colour,
    };
    let (writer, guard, dropped) = output::start(io::stderr());
    #[cfg(feature = "otlp")]
    let export = traces
        .map(|export| crate::otlp::SpanExport::start(export.service_name.clone()))
        .transpose()?;
    #[cfg(feature = "otlp")]
    let spans = export.as_ref().map(|export| export.layer(SPAN_TARGET));
    #[cfg(not(feature = "otlp"))]
    let spans = None;
    let log = subscriber(style, filter.parse()?, writer, spans);
    tracing::subscriber::set_global_default(log)?;
    log_panics();
    #[cfg(not(feature = "otlp"))]
    if traces.is_some() {
        tracing::warn!("traces are not exported: this program was built without the feature otlp");
    }
    Ok(LogHandle {
        dropped,
        #[cfg(feature = "otlp")]
        _spans: export,
        _guard: guard,
    })
}

fn subscriber(
    style: LineStyle,
    filter: EnvFilter,
    writer: NonBlocking,
    spans: Option<Box<dyn Layer<Registry> + Send + Sync>>,
) -> impl Subscriber {
    let lines = tracing_subscriber::fmt::layer()
        .event_format(style)
        .fmt_fields(style)
        // Its own errors would be lines of another format.
        .log_internal_errors(false)
        .with_writer(writer);
    Registry::default().with(spans).with(lines.with_filter(filter))
}

impl LogFilter {
    fn parse(&self) -> anyhow::Result<EnvFilter> {
        match self {
            Self::Level(level) => {
                // Spans cost more than lines, so they are recorded on request only.
                let text = format!("{},{SPAN_TARGET}=off", level.filter());
                EnvFilter::builder().parse(text).context("the log level is invalid")
            }
            Self::Directives(text) => {
                let names_spans = text.contains(SPAN_TARGET);
                let directives =
                    if names_spans { text.clone() } else { format!("{text},{SPAN_TARGET}=off") };
                let filter = EnvFilter::builder().parse(directives);
                filter.with_context(|| format!("RUST_LOG is invalid: {text:?}"))
            }
        }
    }
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

/// The counter of a log without lines.
#[cfg(test)]
pub(crate) fn empty_log() -> LogHandle {
    let (_, guard, dropped) = output::start(io::sink());
    LogHandle {
        dropped,
        #[cfg(feature = "otlp")]
        _spans: None,
        _guard: guard,
    }
}

/// Logs panics in place of the text that the standard library prints.
fn log_panics() {
    panic::set_hook(Box::new(|panic| {
        let payload = panic.payload_as_str().unwrap_or("the panic has no message");
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        let thread = thread::current();
        let thread = thread.name().unwrap_or_default();
        tracing::error!(thread, location, "panicked: {payload}");
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            backtrace.to_string().lines().for_each(|line| tracing::error!("{line}"));
        }
    }));
}

#[cfg(test)]
mod tests;
