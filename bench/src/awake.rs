//! Keeps the cores from sleeping while something is measured.
//!
//! A core that has nothing to do goes to sleep, and a virtual one takes 50 µs and more to come
//! back. Whether it does depends on how long it waits: of two operations of 160 and 180 µs one may
//! find its core awake and the other not, and a ratio between them then tells of the host. So no
//! core sleeps here, for either side, as in other measurements of latency; `--sleep` lets them.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
};

/// Whoever has it open says how many microseconds a core may take to wake, until it is closed.
const DEVICE: &str = "/dev/cpu_dma_latency";

/// No core sleeps while this value lives.
#[derive(Debug)]
pub(crate) struct Awake {
    _device: File,
}

impl Awake {
    pub(crate) fn hold() -> io::Result<Self> {
        let mut device = OpenOptions::new().write(true).open(DEVICE)?;
        device.write_all(&0_i32.to_ne_bytes())?;
        Ok(Self { _device: device })
    }
}

/// Holds the cores awake if that is wished and allowed, and says how it is.
pub(crate) fn hold(sleep: bool) -> (Option<Awake>, String) {
    if sleep {
        return (None, "The cores slept whenever they had nothing to do.".to_owned());
    }
    match Awake::hold() {
        Ok(awake) => {
            let how = format!("No core slept (`{DEVICE}`); with `--sleep` they do.");
            (Some(awake), how)
        }
        Err(error) => (
            None,
            format!(
                "The cores slept whenever they had nothing to do, since {DEVICE} cannot be \
                 written ({error}): latencies say as much about the host as about the programs."
            ),
        ),
    }
}
