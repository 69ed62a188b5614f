//! Output and confirmation prompts of commands.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use anstream::{AutoStream, ColorChoice};
use anstyle::AnsiColor;
use anyhow::bail;
use serde::Serialize;
use serde_json::json;
use terminal_size::{Width, terminal_size_of};

use semel_telemetry::escape;

/// Standard output: a terminal, a pipe or a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    pub(super) json: bool,
    /// Number of columns of the terminal; `None` if there is no terminal.
    pub(super) width: Option<usize>,
    colour: bool,
}

/// When to write in colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ColorMode {
    /// On a terminal, unless the environment says otherwise
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl ColorMode {
    /// Applies it to this process.
    pub(super) fn set(self) {
        let choice = match self {
            Self::Auto => ColorChoice::Auto,
            Self::Always => ColorChoice::Always,
            Self::Never => ColorChoice::Never,
        };
        choice.write_global();
    }
}

/// Whether standard output is written in colours.
pub(super) fn is_stdout_coloured() -> bool {
    AutoStream::choice(&io::stdout()) != ColorChoice::Never
}

/// The style of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Strong,
    Faint,
    Good,
    Bad,
    Busy,
}

impl Output {
    pub(super) fn new(json: bool) -> Self {
        let width = terminal_size_of(io::stdout()).map(|(Width(columns), _)| columns.into());
        Self { json, width, colour: is_stdout_coloured() }
    }

    /// Without colours and without a width limit.
    pub(super) const fn plain() -> Self {
        Self { json: false, width: None, colour: false }
    }

    /// Text in its colour, if there are colours.
    pub(super) fn paint(self, tone: Style, text: &str) -> String {
        let style = match tone {
            _ if !self.colour => return text.to_owned(),
            Style::Plain => anstyle::Style::new(),
            Style::Strong => anstyle::Style::new().bold(),
            Style::Faint => anstyle::Style::new().dimmed(),
            Style::Good => AnsiColor::Green.on_default(),
            Style::Bad => AnsiColor::Red.on_default(),
            Style::Busy => AnsiColor::Yellow.on_default(),
        };
        format!("{style}{text}{style:#}")
    }

    /// A state in its colour.
    pub(super) fn state(self, state: &str, width: usize) -> String {
        let tone = match state {
            "held" => Style::Bad,
            "in_flight" => Style::Busy,
            "completed" => Style::Good,
            _ => Style::Plain,
        };
        self.paint(tone, &format!("{state:width$}"))
    }

    /// Prints a line.
    pub(super) fn line(self, text: &str) -> anyhow::Result<()> {
        print(text)
    }

    /// Prints a value as JSON, on one line.
    pub(super) fn json(self, value: &impl Serialize) -> anyhow::Result<()> {
        print(&serde_json::to_string(value)?)
    }

    /// Prints the consequences, and asks for confirmation.
    pub(super) fn confirm(self, follows: &str, yes: bool) -> anyhow::Result<()> {
        if yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            bail!(
                "nothing was changed: there is no terminal for a confirmation, so use --yes. \
                 {follows}"
            );
        }
        let mut answer = String::new();
        let mut out = io::stderr().lock();
        write!(out, "{follows}\nContinue? [y/N] ")?;
        out.flush()?;
        io::stdin().lock().read_line(&mut answer)?;
        match answer.trim() {
            "y" | "Y" | "yes" => Ok(()),
            _ => bail!("nothing was changed"),
        }
    }
}

/// A progress line, only on a terminal.
#[derive(Debug)]
pub(super) struct ProgressLine {
    shown: bool,
    began: tokio::time::Instant,
}

/// Delay before progress is shown.
const PROGRESS_AFTER: std::time::Duration = std::time::Duration::from_secs(1);

impl ProgressLine {
    pub(super) fn new() -> Self {
        Self { shown: false, began: tokio::time::Instant::now() }
    }

    pub(super) fn show(&mut self, text: &str) {
        if self.began.elapsed() >= PROGRESS_AFTER && io::stderr().is_terminal() {
            self.shown = true;
            // A failure to show progress is ignored.
            let _ = write!(io::stderr(), "\r\x1b[K{text}");
        }
    }

    /// Removes the progress line.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Prints a note to stderr.
pub(super) fn note(words: &str) {
    let _ = writeln!(io::stderr(), "{}", escape::lines(words));
}

/// Prints an error to stderr.
pub(super) fn print_error(words: &str) {
    let _ = writeln!(io::stderr(), "error: {}", escape::lines(words));
}

/// Prints an error as JSON to stderr.
pub(super) fn print_error_json(words: &str, code: u8) {
    let _ = writeln!(io::stderr(), "{}", json!({ "error": words, "exit_code": code }));
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        // The reader closed the pipe, as in `semel list | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => Ok(written?),
    }
}
