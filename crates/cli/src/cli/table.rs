//! Records in aligned columns that fit the terminal.

use super::output::{Output, Style};
use semel_admin::{responses::RecordSummaryView, time_or_age};
use semel_telemetry::{escape, format_duration};

/// A column of the table.
struct Column {
    head: &'static str,
    align: Align,
    /// To how many characters its cells may be cut where the terminal is too narrow; `None` if
    /// they are shown whole, because a command needs them.
    cut_to: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

const COLUMNS: [Column; 9] = [
    Column { head: "STATE", align: Align::Left, cut_to: None },
    Column { head: "KEY", align: Align::Left, cut_to: None },
    Column { head: "SCOPE", align: Align::Left, cut_to: None },
    Column { head: "CALLER", align: Align::Left, cut_to: Some(11) },
    Column { head: "AGE", align: Align::Right, cut_to: None },
    Column { head: "CLAIMED (UTC)", align: Align::Left, cut_to: None },
    Column { head: "NODE", align: Align::Left, cut_to: Some(8) },
    Column { head: "REASON", align: Align::Left, cut_to: Some(14) },
    Column { head: "ABOUT", align: Align::Left, cut_to: Some(14) },
];

/// Which columns are left out, one after the other, where cutting is not enough.
const LEFT_OUT: [&str; 5] = ["NODE", "CLAIMED (UTC)", "CALLER", "ABOUT", "REASON"];

const GAP: &str = "  ";

type Cells = [String; COLUMNS.len()];

/// How wide each column is; 0 if it is left out. The first page decides, so that a long listing
/// need not be kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Widths([usize; COLUMNS.len()]);

impl Widths {
    /// As wide as these lines and the head need, or as the screen allows.
    pub(super) fn of(lines: &[RecordSummaryView], output: Output) -> Self {
        let mut widths = COLUMNS.map(|column| column.head.len());
        for line in lines {
            for (width, cell) in widths.iter_mut().zip(&cells(line)) {
                *width = cell.chars().count().max(*width);
            }
        }
        if let Some(columns) = output.width {
            fit(&mut widths, columns);
        }
        Self(widths)
    }

    pub(super) fn head(self, output: Output) -> String {
        let heads = COLUMNS.map(|column| column.head.to_owned());
        output.paint(Style::Faint, &self.row(&heads, None))
    }

    pub(super) fn line(self, line: &RecordSummaryView, output: Output) -> String {
        self.row(&cells(line), Some(output))
    }

    fn row(self, cells: &Cells, output: Option<Output>) -> String {
        let mut row = String::new();
        for (index, ((cell, width), column)) in cells.iter().zip(self.0).zip(&COLUMNS).enumerate() {
            if width == 0 {
                continue;
            }
            if index > 0 {
                row.push_str(GAP);
            }
            let cell = match column.cut_to {
                Some(_) if output.is_some_and(|output| output.width.is_some()) => cut(cell, width),
                _ => cell.clone(),
            };
            match (output, column.align) {
                (Some(output), _) if index == 0 => row.push_str(&output.state(&cell, width)),
                (_, Align::Right) => row.push_str(&format!("{cell:>width$}")),
                (_, Align::Left) => row.push_str(&format!("{cell:width$}")),
            }
        }
        row.truncate(row.trim_end().len());
        row
    }
}

/// A whole table, each line with its end.
pub(super) fn records(lines: &[RecordSummaryView], output: Output) -> String {
    let widths = Widths::of(lines, output);
    let rows = lines.iter().map(|line| widths.line(line, output));
    std::iter::once(widths.head(output)).chain(rows).map(|row| row + "\n").collect()
}

/// Makes a row fit: leaves columns out if even the narrowest row would be too wide, then narrows
/// the widest of those that may be cut.
fn fit(widths: &mut [usize; COLUMNS.len()], columns: usize) {
    let least = |width: usize, column: &Column| match column.cut_to {
        Some(least) => width.min(least.max(column.head.len())),
        None => width,
    };
    let gap = |width: usize| if width == 0 { 0 } else { GAP.len() };
    for head in LEFT_OUT {
        let narrowest = widths.iter().zip(&COLUMNS);
        let narrowest = narrowest.map(|(width, column)| least(*width, column) + gap(*width));
        if narrowest.sum::<usize>() <= columns + GAP.len() {
            break;
        }
        if let Some(index) = COLUMNS.iter().position(|column| column.head == head) {
            widths[index] = 0;
        }
    }
    let all: usize = widths.iter().map(|width| width + gap(*width)).sum();
    for _ in columns + GAP.len()..all {
        let can_give = |(width, column): &(&mut usize, &Column)| **width > least(**width, column);
        let wide = widths.iter_mut().zip(&COLUMNS).filter(can_give);
        let Some((width, _)) = wide.max_by_key(|(width, _)| **width) else { break };
        *width -= 1;
    }
}

/// The text with its middle left out, if it is longer than `width`.
fn cut(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let shown = width.saturating_sub(1);
    let (head, tail) = (shown.div_ceil(2), shown / 2);
    let start = text.chars().take(head);
    start.chain(['…']).chain(text.chars().skip(length.saturating_sub(tail))).collect()
}

fn cells(line: &RecordSummaryView) -> Cells {
    let reason = line.reason.as_deref();
    let reason = reason.unwrap_or(if line.lapsed { "lease expired" } else { "" });
    [
        escape::line(&line.state),
        escape::line(&line.key),
        escape::line(&line.scope),
        caller(&line.caller),
        format_duration(line.age()),
        time_or_age::compact(&line.claimed_at).unwrap_or_default(),
        escape::line(&line.node),
        escape::line(reason),
        escape::line(&line.about),
    ]
}

/// A caller's name, which may hold any text.
pub(super) fn caller(name: &str) -> String {
    if name.is_empty() { "(anonymous)".to_owned() } else { escape::line(name) }
}

/// A number with its thousands apart, as in `5,000`.
pub(super) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

#[cfg(test)]
mod tests {
    use semel_testkit::with;
    use serde_json::{Value, json};

    use super::*;

    fn line(more: Value) -> RecordSummaryView {
        let mut line = json!({
            "scope": "payments", "caller": "", "key": "a-long-key", "state": "held",
            "fence": 1_763_474_602_123_456_u64, "attempt": 1, "age_ms": 192_000,
            "claimed_at": "2026-11-18T13:56:48.250Z", "node": "gateway-1",
            "reason": "upstream answered 503", "about": "POST api.example.com/v1/charges",
        });
        let (Value::Object(fields), Value::Object(more)) = (&mut line, more) else { panic!() };
        fields.extend(more);
        serde_json::from_value(line).unwrap()
    }

    fn lines() -> [RecordSummaryView; 2] {
        let more = json!({
            "caller": "Zoë\n", "key": "b", "state": "in_flight", "age_ms": 120, "lapsed": true,
            "reason": null, "about": "",
        });
        [line(json!({})), line(more)]
    }

    #[test]
    fn columns_are_aligned() {
        let table = records(&lines(), Output::plain());
        let table: Vec<&str> = table.lines().collect();
        assert_eq!(
            table,
            [
                "STATE      KEY         SCOPE     CALLER          AGE  CLAIMED (UTC)   NODE       \
                 REASON                 ABOUT",
                "held       a-long-key  payments  (anonymous)  3m 12s  11-18 13:56:48  gateway-1  \
                 upstream answered 503  POST api.example.com/v1/charges",
                "in_flight  b           payments  Zoë\\n         120ms  11-18 13:56:48  gateway-1  \
                 lease expired",
            ]
        );
    }

    #[test]
    fn a_narrow_terminal_gets_narrow_columns_but_whole_keys() {
        for width in [200, 140, 120, 110, 109, 96, 80, 50] {
            let output = with(Output::plain(), |output| output.width = Some(width));
            let table = records(&lines(), output);
            for row in table.lines() {
                assert!(row.chars().count() <= width, "{width}: {row}");
            }
            assert!(table.contains("held       a-long-key  payments"), "{table}");
            let whole = table.contains("POST api.example.com/v1/charges");
            assert_eq!(whole, width >= 140, "{width}: {table}");
            assert_eq!(table.contains("NODE"), width >= 110, "{width}: {table}");
            assert_eq!(table.contains("REASON"), width >= 80, "{width}: {table}");
        }
        let output = with(Output::plain(), |output| output.width = Some(110));
        let table = records(&lines(), output);
        assert!(table.contains("gate…y-1  upstrea…ed 503  POST ap…harges"), "{table}");
        let output = with(Output::plain(), |output| output.width = Some(20));
        assert!(records(&lines(), output).contains("held       a-long-key  payments  3m 12s"));
    }

    #[test]
    fn thousands_stand_apart() {
        let numbers = [0, 999, 1000, 12_345, 1_234_567].map(number);
        assert_eq!(numbers, ["0", "999", "1,000", "12,345", "1,234,567"]);
    }

    #[test]
    fn the_middle_is_cut_out() {
        assert_eq!(cut("abcdefghij", 10), "abcdefghij");
        assert_eq!(cut("abcdefghij", 9), "abcd…ghij");
        assert_eq!(cut("äbcdefghiß", 4), "äb…ß");
        assert_eq!(cut("abc", 1), "…");
    }
}
