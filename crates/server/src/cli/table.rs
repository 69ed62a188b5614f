//! Records in aligned columns.

use super::screen::{Screen, Tone};
use crate::{
    api::view::LineView,
    ops::{escape, span},
};

const HEAD: [&str; 7] = ["STATE", "KEY", "SCOPE", "CALLER", "FENCE", "ATTEMPT", "AGE"];

/// How wide each column is. The first page decides, so that a long listing need not be kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Widths([usize; 7]);

impl Widths {
    /// As wide as these lines and the head need.
    pub(super) fn of(lines: &[LineView]) -> Self {
        let mut widths = HEAD.map(str::len);
        for line in lines {
            for (width, cell) in widths.iter_mut().zip(&cells(line)) {
                *width = cell.chars().count().max(*width);
            }
        }
        Self(widths)
    }

    pub(super) fn head(self, screen: Screen) -> String {
        screen.tint(Tone::Faint, &self.row(&HEAD.map(str::to_owned), None))
    }

    pub(super) fn line(self, line: &LineView, screen: Screen) -> String {
        self.row(&cells(line), Some(screen))
    }

    fn row(self, cells: &[String; 7], screen: Option<Screen>) -> String {
        let mut row = String::new();
        for (column, (cell, width)) in cells.iter().zip(self.0).enumerate() {
            if column > 0 {
                row.push_str("  ");
            }
            match screen {
                Some(screen) if column == 0 => row.push_str(&screen.state(cell, width)),
                // Numbers stand to the right.
                _ if column >= 4 => row.push_str(&format!("{cell:>width$}")),
                _ => row.push_str(&format!("{cell:width$}")),
            }
        }
        row
    }
}

/// A whole table, each line with its end.
pub(super) fn records(lines: &[LineView], screen: Screen) -> String {
    let widths = Widths::of(lines);
    let rows = lines.iter().map(|line| widths.line(line, screen));
    std::iter::once(widths.head(screen)).chain(rows).map(|row| row + "\n").collect()
}

fn cells(line: &LineView) -> [String; 7] {
    [
        line.state.clone(),
        line.key.clone(),
        line.scope.clone(),
        caller(&line.caller),
        line.fence.to_string(),
        line.attempt.to_string(),
        span::show(line.age()),
    ]
}

/// A caller's name, which may hold any text.
pub(super) fn caller(name: &str) -> String {
    if name.is_empty() { "(anonymous)".to_owned() } else { escape::line(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let line = |key: &str, caller: &str, fence, age_ms| LineView {
            scope: "payments".into(),
            caller: caller.into(),
            key: key.into(),
            state: "held".into(),
            fence,
            attempt: 1,
            age_ms,
        };
        let lines = [line("a-long-key", "", 7, 192_000), line("b", "Zoë\n", 1234, 120)];
        assert_eq!(
            records(&lines, Screen::plain()),
            "STATE  KEY         SCOPE     CALLER       FENCE  ATTEMPT     AGE\n\
             held   a-long-key  payments  (anonymous)      7        1  3m 12s\n\
             held   b           payments  Zoë\\n         1234        1   120ms\n"
        );
    }
}
