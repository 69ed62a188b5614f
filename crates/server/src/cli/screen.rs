//! What operators' commands print, and how they ask.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use anyhow::bail;
use serde::Serialize;
use serde_json::json;
use terminal_size::{Width, terminal_size_of};

use crate::ops::{escape, is_colourful};

/// The terminal, or whatever stands in for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Screen {
    pub(super) json: bool,
    /// How many columns the terminal has; `None` if there is no terminal.
    pub(super) width: Option<usize>,
    colour: bool,
}

/// What a piece of text means, and so its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Strong,
    Faint,
    Good,
    Bad,
    Busy,
}

impl Screen {
    pub(super) fn new(json: bool) -> Self {
        let width = terminal_size_of(io::stdout()).map(|(Width(columns), _)| columns.into());
        Self { json, width, colour: is_colourful(&io::stdout()) }
    }

    /// Without colours, and as wide as need be.
    pub(super) const fn plain() -> Self {
        Self { json: false, width: None, colour: false }
    }

    /// Text in its colour, if there are colours.
    pub(super) fn tint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => return text.to_owned(),
            Tone::Strong => "1",
            Tone::Faint => "2",
            Tone::Good => "32",
            Tone::Bad => "31",
            Tone::Busy => "33",
        };
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// A state in its colour.
    pub(super) fn state(self, state: &str, width: usize) -> String {
        let tone = match state {
            "held" => Tone::Bad,
            "in_flight" => Tone::Busy,
            "completed" => Tone::Good,
            _ => Tone::Plain,
        };
        self.tint(tone, &format!("{state:width$}"))
    }

    /// Prints a line.
    pub(super) fn line(self, text: &str) -> anyhow::Result<()> {
        print(text)
    }

    /// Prints a value as JSON, on one line.
    pub(super) fn json(self, value: &impl Serialize) -> anyhow::Result<()> {
        print(&serde_json::to_string(value)?)
    }

    /// Says what will follow, and asks whether to go on.
    pub(super) fn confirm(self, follows: &str, yes: bool) -> anyhow::Result<()> {
        if yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            bail!("nothing was changed: there is no terminal to ask at, so say --yes. {follows}");
        }
        let mut answer = String::new();
        let mut out = io::stderr().lock();
        write!(out, "{follows}\nGo on? [y/N] ")?;
        out.flush()?;
        io::stdin().lock().read_line(&mut answer)?;
        match answer.trim() {
            "y" | "Y" | "yes" => Ok(()),
            _ => bail!("nothing was changed"),
        }
    }
}

/// A line that is written over while something takes long; only on a terminal.
#[derive(Debug)]
pub(super) struct Progress {
    shown: bool,
    began: tokio::time::Instant,
}

/// How long something may take before it is spoken of.
const PROGRESS_AFTER: std::time::Duration = std::time::Duration::from_secs(1);

impl Progress {
    pub(super) fn new() -> Self {
        Self { shown: false, began: tokio::time::Instant::now() }
    }

    pub(super) fn say(&mut self, text: &str) {
        if self.began.elapsed() >= PROGRESS_AFTER && io::stderr().is_terminal() {
            self.shown = true;
            // If it cannot be shown, the work goes on.
            let _ = write!(io::stderr(), "\r\x1b[K{text}");
        }
    }

    /// Makes room for what is printed next.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Says something beside what was asked for.
pub(super) fn note(words: &str) {
    let _ = writeln!(io::stderr(), "{}", escape::lines(words));
}

/// Says what is wrong.
pub(super) fn complain(words: &str) {
    let _ = writeln!(io::stderr(), "error: {}", escape::lines(words));
}

/// Says what is wrong to a program.
pub(super) fn complain_in_json(words: &str, code: u8) {
    let _ = writeln!(io::stderr(), "{}", json!({ "error": words, "exit_code": code }));
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        // Whoever reads has seen enough, as in `semel list | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => Ok(written?),
    }
}
