//! Programs that run beside this one and end with it.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

/// A program that was asked to end and does not is ended the hard way.
const END: Duration = Duration::from_secs(5);

/// A program that runs as long as this value lives.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
}

impl Program {
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let child = command.spawn();
        let child = child.with_context(|| format!("starting {}", command.get_program().display()));
        Ok(Self { child: child? })
    }

    /// This program as one of its servers, and the port that it is bound to.
    pub(crate) fn serve(command: &mut Command) -> anyhow::Result<(Self, u16)> {
        let mut program = Self::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let output = program.child.stdout.take().context("a server has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let port = line.trim().parse().context("a server did not start")?;
        Ok((program, port))
    }

    pub(crate) const fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks the program to end and waits until it has, however long it takes.
    pub(crate) fn stop(mut self) -> anyhow::Result<ExitStatus> {
        self.terminate();
        Ok(self.child.wait()?)
    }

    /// If the program is gone already, all is well.
    fn terminate(&self) {
        if let Some(process) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(process, Signal::TERM);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It is asked first, because nginx has to end its own processes.
        self.terminate();
        let asked = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && asked.elapsed() < END {
            thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
