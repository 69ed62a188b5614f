//! What a child's disk does besides forgetting, and the settings of the library.

use super::disk::{ARMED, create_pair};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// How a child's disk behaves. Start from [`Options::new`], which adds no mischief.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory whose files are watched, with everything below it.
    pub watch: PathBuf,
    /// Where the durable state is kept. Must lie outside of `watch`.
    pub shadow: PathBuf,
    /// Where every random choice comes from. Threads race for the numbers, so a run is repeated
    /// exactly only if the child writes and syncs from one thread.
    pub seed: u64,
    /// The chance that a write is durable at once, whole or torn.
    pub early_percent: u8,
    /// The chance that a sync fails and makes nothing durable.
    pub fail_sync_percent: u8,
    /// The chance that a sync makes everything durable and fails nevertheless.
    pub ambiguous_sync_percent: u8,
    /// What becomes of the writes that a failed sync should have covered.
    pub after_failed_sync: AfterFailedSync,
    /// Whether the disk is full: no positioned write may make a file larger. Obeys
    /// [`Inject::WhenArmed`].
    pub full: bool,
    /// When syncs may fail at all.
    pub inject: Inject,
    /// How many syncs may fail in the life of the child, of either kind.
    pub inject_max: u64,
    /// How long a sync takes. Widens the windows in which a kill or another thread can strike.
    pub sync_delay: Duration,
}

/// What becomes of the writes that a failed sync should have covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterFailedSync {
    /// They are marked clean and never become durable unless written again, as on Linux.
    Lose,
    /// They stay due, and the next sync that succeeds covers them.
    Keep,
}

/// When syncs may fail. The first ones usually should not, so that a database can be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inject {
    /// From the first sync on.
    Always,
    /// Once that many syncs were made.
    AfterSyncs(u64),
    /// While the shadow is armed: see [`arm`](super::arm) and [`disarm`](super::disarm).
    WhenArmed,
}

impl Options {
    /// A disk that keeps what was synced, exactly, and whose syncs never fail.
    pub fn new(watch: impl Into<PathBuf>, shadow: impl Into<PathBuf>) -> Self {
        Self {
            watch: watch.into(),
            shadow: shadow.into(),
            seed: 0,
            early_percent: 0,
            fail_sync_percent: 0,
            ambiguous_sync_percent: 0,
            after_failed_sync: AfterFailedSync::Lose,
            full: false,
            inject: Inject::Always,
            inject_max: u64::MAX,
            sync_delay: Duration::ZERO,
        }
    }

    /// The variables that the library reads. Creates the directories, to name them absolutely.
    pub(super) fn environment(&self) -> io::Result<Vec<(&'static str, OsString)>> {
        if u16::from(self.fail_sync_percent) + u16::from(self.ambiguous_sync_percent) > 100 {
            let why = "the percentages of failing syncs exceed 100 together";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let (watch, shadow) = create_pair(&self.watch, &self.shadow)?;
        let (after, file) = match self.inject {
            Inject::Always => (0, OsString::new()),
            Inject::AfterSyncs(count) => (count, OsString::new()),
            Inject::WhenArmed => (0, shadow.join(ARMED).into_os_string()),
        };
        let lose = u8::from(self.after_failed_sync == AfterFailedSync::Lose);
        Ok(vec![
            ("SEMEL_POWERCUT_WATCH", watch.into_os_string()),
            ("SEMEL_POWERCUT_SHADOW", shadow.into_os_string()),
            ("SEMEL_POWERCUT_SEED", self.seed.to_string().into()),
            ("SEMEL_POWERCUT_EARLY", self.early_percent.to_string().into()),
            ("SEMEL_POWERCUT_FAIL_SYNC", self.fail_sync_percent.to_string().into()),
            ("SEMEL_POWERCUT_AMBIGUOUS_SYNC", self.ambiguous_sync_percent.to_string().into()),
            ("SEMEL_POWERCUT_LOSE", lose.to_string().into()),
            ("SEMEL_POWERCUT_FULL", u8::from(self.full).to_string().into()),
            ("SEMEL_POWERCUT_INJECT_AFTER", after.to_string().into()),
            ("SEMEL_POWERCUT_INJECT_FILE", file),
            ("SEMEL_POWERCUT_INJECT_MAX", self.inject_max.to_string().into()),
            ("SEMEL_POWERCUT_SYNC_DELAY_MICROS", self.sync_delay.as_micros().to_string().into()),
        ])
    }
}
