//! The program with a terminal to ask at.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    process::{Child, Stdio},
};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::harness::{CommandOutput, Harness};

/// `semel` while it waits for a word.
pub(crate) struct Asking {
    child: Child,
    terminal: File,
    /// What it has said on stderr.
    asked: String,
}

impl Asking {
    /// Starts `semel` with a terminal as its input, and waits until it asks.
    pub(crate) fn start(harness: &Harness, words: &[&str], token: Option<&str>) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
        let input = File::options().read(true).write(true).open(name).unwrap();
        let mut command = harness.semel();
        if let Some(token) = token {
            command.env("SEMEL_OPERATOR_TOKEN", token);
        }
        command.args(words).stdin(Stdio::from(input));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (mut asked, mut byte) = (Vec::new(), [0]);
        let stderr = child.stderr.as_mut().unwrap();
        while !asked.ends_with(b"[y/N] ") {
            let read = stderr.read(&mut byte).unwrap();
            assert_ne!(read, 0, "it did not ask: {}", String::from_utf8_lossy(&asked));
            asked.extend(byte);
        }
        let asked = String::from_utf8(asked).unwrap();
        Self { child, terminal: terminal.into(), asked }
    }

    /// What it says will follow.
    pub(crate) fn asked(&self) -> &str {
        &self.asked
    }

    /// Gives it a word, and returns what came of it.
    pub(crate) fn answer(mut self, word: &str) -> CommandOutput {
        writeln!(self.terminal, "{word}").unwrap();
        CommandOutput::from(self.child.wait_with_output().unwrap())
    }
}
