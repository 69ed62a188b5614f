//! The report: a table for people, and files of the raw values.

use std::{
    fmt::Write as _,
    fs,
    io::IsTerminal as _,
    path::{Path, PathBuf},
};

use crate::{machine, measure::median};

/// The target of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
}

impl Target {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(target) => value >= target,
            Self::AtMost(target) => value <= target,
            Self::Below(target) => value < target,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtLeast(target) => format!(">= {}", figure(target)),
            Self::AtMost(target) => format!("<= {}", figure(target)),
            Self::Below(target) => format!("< {}", figure(target)),
        }
    }
}

/// One figure, with its value in each round.
#[derive(Clone, Debug)]
struct Line {
    part: &'static str,
    what: String,
    unit: &'static str,
    rounds: Vec<f64>,
    target: Option<Target>,
}

impl Line {
    fn verdict(&self) -> Option<bool> {
        self.target.map(|target| target.holds(median(&self.rounds)))
    }

    /// What is measured, median, its rounds (of many the lowest and the highest), target, verdict.
    fn cells(&self) -> [String; 5] {
        let low = self.rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let high = self.rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let spread = match self.rounds.len() {
            0 | 1 => String::new(),
            2 | 3 => self.rounds.iter().map(|value| figure(*value)).collect::<Vec<_>>().join("  "),
            count => format!("{} to {} in {count}", figure(low), figure(high)),
        };
        let verdict = match self.verdict() {
            None => "",
            Some(true) => "PASS",
            Some(false) => "MISS",
        };
        [
            self.what.clone(),
            format!("{} {}", figure(median(&self.rounds)), self.unit),
            spread,
            self.target.map(Target::text).unwrap_or_default(),
            verdict.to_owned(),
        ]
    }
}

/// All figures of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    lines: Vec<Line>,
    notes: Vec<String>,
    judged: bool,
}

impl Report {
    /// An empty report, which holds figures against their targets or not.
    pub(crate) fn new(judged: bool) -> Self {
        Self { judged, ..Self::default() }
    }

    /// A figure for information.
    pub(crate) fn line(
        &mut self,
        part: &'static str,
        what: impl Into<String>,
        unit: &'static str,
        rounds: &[f64],
    ) {
        self.add(part, what, unit, rounds, None);
    }

    /// A figure that has a target.
    pub(crate) fn judge(
        &mut self,
        part: &'static str,
        what: impl Into<String>,
        unit: &'static str,
        rounds: &[f64],
        target: Target,
    ) {
        self.add(part, what, unit, rounds, Some(target));
    }

    /// A figure that may have a target.
    pub(crate) fn add(
        &mut self,
        part: &'static str,
        what: impl Into<String>,
        unit: &'static str,
        rounds: &[f64],
        target: Option<Target>,
    ) {
        let target = target.filter(|_| self.judged);
        let (what, rounds) = (what.into(), rounds.to_vec());
        self.lines.push(Line { part, what, unit, rounds, target });
    }

    /// A note on how something was measured.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    pub(crate) fn misses(&self) -> usize {
        self.lines.iter().filter(|line| line.verdict() == Some(false)).count()
    }

    pub(crate) fn print(&self) {
        let colour = std::io::stdout().is_terminal();
        let mut part = "";
        let widths = self.widths();
        for line in &self.lines {
            if line.part != part {
                part = line.part;
                println!("\n{part}");
            }
            let [what, value, spread, target, verdict] = line.cells();
            let [w, v, s, t] = widths;
            let verdict = match line.verdict() {
                Some(true) if colour => format!("\x1b[32m{verdict}\x1b[0m"),
                Some(false) if colour => format!("\x1b[1;31m{verdict}\x1b[0m"),
                _ => verdict,
            };
            let text = format!("  {what:w$}  {value:>v$}  {spread:s$}  {target:t$}  {verdict}");
            println!("{}", text.trim_end());
        }
        println!();
        for note in &self.notes {
            println!("{note}");
        }
    }

    fn widths(&self) -> [usize; 4] {
        let mut widths = [0; 4];
        for line in &self.lines {
            for (width, cell) in widths.iter_mut().zip(line.cells()) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }

    /// Writes the raw values and a summary into a new folder of `runs` and names it.
    pub(crate) fn save(&self, runs: &Path, name: &str) -> anyhow::Result<PathBuf> {
        let folder = runs.join(format!("{}-{name}", machine::today()));
        fs::create_dir_all(&folder)?;
        let mut raw = "part,what,round,value,unit\n".to_owned();
        for line in &self.lines {
            for (round, value) in line.rounds.iter().enumerate() {
                let Line { part, what, unit, .. } = line;
                writeln!(raw, "{part},\"{what}\",{},{value},{unit}", round + 1)?;
            }
        }
        fs::write(folder.join("raw.csv"), raw)?;
        fs::write(folder.join("summary.md"), self.summary(name)?)?;
        Ok(folder)
    }

    fn summary(&self, name: &str) -> anyhow::Result<String> {
        let mut text = format!("# {name}, {}\n\n{}\n", machine::today(), machine::describe());
        let mut part = "";
        for line in &self.lines {
            if line.part != part {
                part = line.part;
                let head = "| what | median | rounds | target | |\n|---|---|---|---|---|";
                writeln!(text, "\n## {part}\n\n{head}")?;
            }
            writeln!(text, "| {} |", line.cells().join(" | "))?;
        }
        if !self.notes.is_empty() {
            writeln!(text, "\n{}", self.notes.join("\n\n"))?;
        }
        Ok(text)
    }
}

/// A number with as many digits as mean something.
fn figure(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let decimals = match value.abs() {
        size if size >= 1000.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        let left = whole.len() - at;
        if at > 0 && left.is_multiple_of(3) && digit != '-' {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if rest.chars().all(|digit| digit == '0') { grouped } else { format!("{grouped}.{rest}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_that_mean_something() {
        let seen = [0.849, 12.34, 999.94, 61_234.5, 1e6, 12.0].map(figure);
        assert_eq!(seen, ["0.85", "12.3", "999.9", "61,234", "1,000,000", "12"]);
    }

    #[test]
    fn a_missed_target_is_counted() {
        let mut report = Report::new(true);
        report.judge("a", "good", "x", &[1.0, 3.0, 2.0], Target::AtLeast(2.0));
        report.judge("a", "bad", "x", &[1.0], Target::Below(1.0));
        report.line("a", "neither", "x", &[1.0]);
        assert_eq!(report.misses(), 1);
        assert!(report.summary("a").unwrap().contains("| bad | 1 x |  | < 1 | MISS |"));
    }
}
