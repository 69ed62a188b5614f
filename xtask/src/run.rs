//! Starting other programs: each step is announced, timed and, when it fails, named.

use std::ffi::OsStr;
use std::io::IsTerminal as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// The cargo that started this program, in the repository's root.
pub(crate) fn cargo(root: &Path, args: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(root).args(args);
    command
}

/// Runs one step to its end with its output shown.
///
/// The error of a failed step names the step, how it ended and the line that repeats it alone.
pub(crate) fn step(name: &str, command: &mut Command) -> anyhow::Result<()> {
    let line = line_of(command);
    println!("{} {line}", strong(&format!("==> {name}:")));
    let (status, took) = timed(|| command.status());
    let status = status.with_context(|| format!("{name}: cannot start `{line}`"))?;
    if !status.success() {
        bail!("{name} failed ({status}, {}); to repeat it alone: {line}", seconds(took));
    }
    println!("{} {name}, {}", good("  ok"), seconds(took));
    Ok(())
}

/// A step that is ended when it takes too long.
pub(crate) fn step_within(
    name: &str,
    command: &mut Command,
    timeout: Duration,
) -> anyhow::Result<()> {
    let line = line_of(command);
    println!("{} {line}", strong(&format!("==> {name}:")));
    let mut child = command.spawn().with_context(|| format!("{name}: cannot start `{line}`"))?;
    let (status, took) = timed(|| ended_within(&mut child, timeout));
    match status? {
        Some(status) if status.success() => {
            println!("{} {name}, {}", good("  ok"), seconds(took));
            Ok(())
        }
        Some(status) => bail!("{name} failed ({status}); to repeat it alone: {line}"),
        None => bail!("{name} was ended after {}: {line}", seconds(took)),
    }
}

/// How a program ended, or `None` if it had to be ended.
fn ended_within(child: &mut Child, timeout: Duration) -> anyhow::Result<Option<ExitStatus>> {
    const POLL_INTERVAL: Duration = Duration::from_millis(50);
    let mut left = timeout;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let Some(less) = left.checked_sub(POLL_INTERVAL) else { break };
        left = less;
        std::thread::sleep(POLL_INTERVAL);
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// The standard output of a program that has to succeed.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let line = line_of(command);
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` failed ({})", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{line}` does not speak UTF-8"))
}

/// Whether a program exists and ends well. Shows nothing.
pub(crate) fn works(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Calls `work` and says how long it took.
#[allow(clippy::disallowed_methods, reason = "a person wants to know how long a step took")]
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let value = work();
    (value, start.elapsed())
}

/// A duration as the summary shows it.
pub(crate) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

/// Text for what went well.
pub(crate) fn good(text: &str) -> String {
    paint("32", text)
}

/// Text for what went wrong.
pub(crate) fn bad(text: &str) -> String {
    paint("31", text)
}

/// Text for what did not happen and should be noticed.
pub(crate) fn notice(text: &str) -> String {
    paint("33", text)
}

/// Text for a heading.
pub(crate) fn strong(text: &str) -> String {
    paint("1", text)
}

/// Colours `text` on a terminal only, and never against the reader's `NO_COLOR`.
fn paint(code: &str, text: &str) -> String {
    let terminal = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
    if terminal && std::env::var_os("NO_COLOR").is_none() {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// The command as a person would type it: its own variables, the program's bare name, its words.
fn line_of(command: &Command) -> String {
    let mut words = Vec::new();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            words.push(format!("{}={}", name.display(), quoted(value)));
        }
    }
    let program = Path::new(command.get_program());
    words.push(quoted(program.file_name().unwrap_or(program.as_os_str())));
    words.extend(command.get_args().map(quoted));
    words.join(" ")
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    if word.contains(' ') { format!("'{word}'") } else { word.into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_a_person_would_type_it() {
        let mut command = Command::new("/usr/bin/cargo");
        command.args(["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings").env_remove("CARGO");
        assert_eq!(line_of(&command), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }

    #[test]
    fn a_failed_step_says_its_name_and_how_to_repeat_it() {
        let error = step("format", &mut Command::new("false")).unwrap_err().to_string();
        assert!(error.starts_with("format failed"), "{error}");
        assert!(error.ends_with("to repeat it alone: false"), "{error}");
    }

    #[test]
    fn a_program_that_does_not_exist_does_not_work() {
        assert!(!works(&mut Command::new("semel-no-such-program")));
        assert!(step("ghost", &mut Command::new("semel-no-such-program")).is_err());
    }
    #[test]
    fn a_step_that_takes_too_long_is_ended() {
        let mut sleep = Command::new("sleep");
        let error = step_within("sleep", sleep.arg("60"), Duration::from_millis(100)).unwrap_err();
        assert!(error.to_string().starts_with("sleep was ended after"), "{error}");
        assert!(step_within("true", &mut Command::new("true"), Duration::from_secs(60)).is_ok());
    }
}
