//! The command line.

use std::{
    io::{IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};

/// Every part that can be named.
const PARTS: [&str; 31] = [
    "core",
    "sqlite.throughput",
    "sqlite.filled",
    "sqlite.sweep",
    "sqlite.size",
    "sqlite.open",
    "postgres.alone",
    "postgres.throughput",
    "postgres.filled",
    "postgres.sweep",
    "postgres.bloat",
    "postgres.redis",
    "transaction",
    "velocity.sqlite",
    "velocity.postgres",
    "layer.memory",
    "layer.sqlite",
    "layer.replay",
    "gateway.pass",
    "gateway.unique",
    "gateway.replay",
    "gateway.slow",
    "gateway.memory",
    "gateway.jwt",
    "gateway.dashboards",
    "api",
    "instructions.pass",
    "instructions.claim",
    "instructions.replay",
    "attacks.innocent",
    "attacks.memory",
];

#[derive(Debug)]
pub(crate) struct Settings {
    names: Vec<String>,
    pub(crate) quick: bool,
    pub(crate) full: bool,
    pub(crate) strict: bool,
    pub(crate) save: bool,
    /// Whether cores that have nothing to do may sleep.
    pub(crate) sleep: bool,
    /// Where files are made and filled ones are kept.
    pub(crate) dir: PathBuf,
    /// Where runs are saved.
    pub(crate) runs: PathBuf,
    /// The gateway to measure.
    pub(crate) program: PathBuf,
    /// An earlier build of the gateway, to be measured beside it.
    pub(crate) against: Option<PathBuf>,
}

impl Settings {
    pub(crate) fn parse(words: &[&str]) -> anyhow::Result<Self> {
        let built = std::env::current_exe().context("finding this program")?;
        let built = built.parent().context("finding the target folder")?;
        let mut settings = Self {
            names: Vec::new(),
            quick: false,
            full: false,
            strict: false,
            save: false,
            sleep: false,
            dir: built.with_file_name("bench"),
            runs: Path::new(env!("CARGO_MANIFEST_DIR")).join("runs"),
            program: built.join("semel"),
            against: None,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--quick" => settings.quick = true,
                "--full" => settings.full = true,
                "--strict" => settings.strict = true,
                "--save" => settings.save = true,
                "--sleep" => settings.sleep = true,
                "--dir" => settings.dir = words.next().context("--dir wants a folder")?.into(),
                "--program" => {
                    settings.program = words.next().context("--program wants a file")?.into();
                }
                "--against" => {
                    let former = words.next().context("--against wants a file")?;
                    settings.against = Some(former.into());
                }
                name if PARTS.iter().any(|part| belongs(part, name)) => {
                    settings.names.push(name.to_owned());
                }
                other => bail!("not a benchmark or an option: {other}"),
            }
        }
        if settings.quick && settings.full {
            bail!("--quick and --full exclude each other");
        }
        Ok(settings)
    }

    /// Whether a part is to run: it was named, or its family, or nothing was.
    pub(crate) fn wants(&self, part: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| belongs(part, name))
    }

    /// What a saved run is called.
    pub(crate) fn title(&self) -> String {
        let names = if self.names.is_empty() { "all".to_owned() } else { self.names.join("+") };
        let names = if self.against.is_some() { format!("{names}-against") } else { names };
        let names = if self.sleep { format!("{names}-asleep") } else { names };
        if self.quick { format!("{names}-quick") } else { names }
    }

    /// One value, or another for the short edition.
    pub(crate) fn or_quick<T>(&self, usual: T, quick: T) -> T {
        if self.quick { quick } else { usual }
    }

    pub(crate) fn rounds(&self) -> usize {
        self.or_quick(5, 3)
    }

    /// How long one measurement of many takes, and what comes before it.
    pub(crate) fn cell(&self) -> (Duration, Duration) {
        let millis = self.or_quick((400, 2000), (50, 250));
        (Duration::from_millis(millis.0), Duration::from_millis(millis.1))
    }
}

fn belongs(part: &str, name: &str) -> bool {
    part.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Prints progress on stderr; on a terminal the next line replaces it.
pub(crate) fn progress(text: &str) {
    let mut out = std::io::stderr();
    let _ = if out.is_terminal() {
        write!(out, "\r\x1b[K{text}").and_then(|()| out.flush())
    } else {
        writeln!(out, "{text}")
    };
}

/// Ends the line of [`progress`].
pub(crate) fn progress_end() {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_wants_all_its_parts() {
        let settings = Settings::parse(&["sqlite"]).unwrap();
        assert!(settings.wants("sqlite.open") && !settings.wants("core"));
        assert!(Settings::parse(&["gateway.jwt"]).unwrap().wants("gateway.jwt"));
        let settings = Settings::parse(&["sqlite.open", "--quick"]).unwrap();
        assert!(settings.wants("sqlite.open") && !settings.wants("sqlite.size"));
        assert!(Settings::parse(&[]).unwrap().wants("core"));
    }

    #[test]
    fn unknown_words_are_refused() {
        for words in [&["sql"][..], &["--fast"], &["--dir"], &["--quick", "--full"]] {
            assert!(Settings::parse(words).is_err(), "{words:?}");
        }
    }
}
