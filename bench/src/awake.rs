//! Keeps the cores from sleeping during measurements.
//!
//! An idle core goes to sleep, and a virtual one takes 50 µs and more to wake. Whether it sleeps
//! depends on how long it waits: of two operations of 160 and 180 µs one may find its core awake
//! and the other not, and their ratio then measures the host. So no core sleeps here, for either
//! side, as in other measurements of latency; `--sleep` allows it.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::Path,
};

/// A process that has this device open limits the wake-up latency of cores, in microseconds.
const DEVICE: &str = "/dev/cpu_dma_latency";

/// The cores, held awake while this value lives, or not.
#[derive(Debug)]
pub(crate) struct Cores {
    held: Option<io::Result<File>>,
    slept: Option<u64>,
}

impl Cores {
    /// Holds the cores awake, unless they may sleep.
    pub(crate) fn hold(may_sleep: bool) -> Self {
        let held = (!may_sleep).then(hold);
        Self { held, slept: sleeps() }
    }

    /// How it was with them since.
    pub(crate) fn tell(&self) -> String {
        let how = match &self.held {
            None => "Cores with nothing to do were let sleep".to_owned(),
            Some(Ok(_)) => format!("Cores were held awake by {DEVICE}"),
            Some(Err(error)) => format!("Cores could not be held awake by {DEVICE} ({error})"),
        };
        match self.slept.zip(sleeps()) {
            Some((before, after)) => {
                format!("{how}: they fell asleep {} times.", after.saturating_sub(before))
            }
            None => format!("{how}: the system does not say how often they fell asleep."),
        }
    }
}

fn hold() -> io::Result<File> {
    let mut device = OpenOptions::new().write(true).open(DEVICE)?;
    device.write_all(&0_i32.to_ne_bytes())?;
    Ok(device)
}

/// How often the cores have fallen asleep so far, if the system counts it. One that is idle and
/// only looks whether there is something to do counts as awake.
fn sleeps() -> Option<u64> {
    let mut counted = None;
    for core in fs::read_dir("/sys/devices/system/cpu").ok()?.flatten() {
        for state in fs::read_dir(core.path().join("cpuidle")).into_iter().flatten().flatten() {
            counted = Some(counted.unwrap_or(0) + sleeps_in(&state.path()));
        }
    }
    counted
}

fn sleeps_in(state: &Path) -> u64 {
    let read = |file| fs::read_to_string(state.join(file)).unwrap_or_default();
    if read("name").trim() == "POLL" { 0 } else { read("usage").trim().parse().unwrap_or(0) }
}
