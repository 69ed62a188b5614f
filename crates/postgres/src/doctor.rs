//! Looks at a database as a doctor does: what is found, whether that is well, and what to change.
//!
//! What is asked is in `ask`, what is made of it in `judge`.

mod ask;
mod judge;

use semel_core::StoreError;

use self::ask::Facts;
use crate::Options;

/// What a look at a database has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// One thing after the other, in the order in which a person would ask.
    pub findings: Vec<Finding>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is about, in a word.
    pub about: &'static str,
    /// Whether it is well.
    pub level: Level,
    /// What was found, and what that means.
    pub found: String,
    /// What to do about it: commands, mostly SQL, a line each.
    pub change: Vec<String>,
}

/// Whether something is well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing is to be done.
    Fine,
    /// It works, but not as well as it could, or not for long.
    Warning,
    /// Keys may run twice, or nothing works.
    Error,
}

impl Options {
    /// Looks at the database, and changes nothing.
    ///
    /// # Errors
    ///
    /// If it cannot be reached, or does not let itself be asked.
    pub async fn doctor(&self) -> Result<Report, StoreError> {
        let facts = Facts::ask(self).await?;
        Ok(Report { findings: judge::all(&facts, self) })
    }
}

impl Finding {
    fn fine(about: &'static str, found: impl Into<String>) -> Self {
        Self { about, level: Level::Fine, found: found.into(), change: Vec::new() }
    }

    fn warning(about: &'static str, found: impl Into<String>) -> Self {
        Self { level: Level::Warning, ..Self::fine(about, found) }
    }

    fn error(about: &'static str, found: impl Into<String>) -> Self {
        Self { level: Level::Error, ..Self::fine(about, found) }
    }

    fn change(mut self, command: impl Into<String>) -> Self {
        self.change.push(command.into());
        self
    }
}
