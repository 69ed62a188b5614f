//! The doctor: checks a database and reports findings, with commands that fix them.
//!
//! `probe` queries the database, `diagnose` makes the findings.

mod diagnose;
mod grants;
mod probe;

use semel_core::StoreError;

use self::probe::DatabaseFacts;
use crate::Options;

/// The report on a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoctorReport {
    /// The findings, from the server to the records.
    pub findings: Vec<Finding>,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The subject, in one word.
    pub about: &'static str,
    /// How serious it is.
    pub level: FindingLevel,
    /// The state, and its consequences.
    pub found: String,
    /// Commands that fix it, mostly SQL, one in each line.
    pub change: Vec<String>,
}

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingLevel {
    /// Nothing to do.
    Fine,
    /// It works, but not as well as it could, or not for long.
    Warning,
    /// Keys may run twice, or nothing works.
    Error,
}

impl Options {
    /// Checks the database without changing anything.
    ///
    /// # Errors
    ///
    /// If it cannot be reached or queried.
    pub async fn doctor(&self) -> Result<DoctorReport, StoreError> {
        let facts = DatabaseFacts::query(self).await?;
        Ok(DoctorReport { findings: diagnose::findings(&facts, self) })
    }
}

impl Finding {
    fn fine(about: &'static str, found: impl Into<String>) -> Self {
        Self { about, level: FindingLevel::Fine, found: found.into(), change: Vec::new() }
    }

    fn warning(about: &'static str, found: impl Into<String>) -> Self {
        Self { level: FindingLevel::Warning, ..Self::fine(about, found) }
    }

    fn error(about: &'static str, found: impl Into<String>) -> Self {
        Self { level: FindingLevel::Error, ..Self::fine(about, found) }
    }

    fn change(mut self, command: impl Into<String>) -> Self {
        self.change.push(command.into());
        self
    }
}
