//! `semel duplicates` through the real program, on files and on standard input.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test reports by panicking")]

#[path = "common/command.rs"]
mod command;

use std::{
    fmt::Write as _,
    io::Write as _,
    path::Path,
    process::{Output, Stdio},
    thread,
};

use serde_json::{Value, json};

use crate::command::semel_command;

fn semel(args: &[&str], input: &[u8]) -> Output {
    let mut child = semel_command()
        .arg("duplicates")
        .args(args)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/duplicates"))
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
    // Who refuses its input does not read all of it.
    let writer = thread::spawn(move || _ = stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

/// Standard output of a command that succeeds, whether or not it finds something; with what it says
/// beside it.
#[track_caller]
fn run_duplicates(args: &[&str], input: &str) -> (String, String) {
    let output = semel(args, input.as_bytes());
    let err = String::from_utf8(output.stderr).unwrap();
    assert!([Some(0), Some(5)].contains(&output.status.code()), "{err}");
    (String::from_utf8(output.stdout).unwrap(), err)
}

#[track_caller]
fn found(args: &[&str], input: &str) -> Value {
    let (out, err) = run_duplicates(&[args, &["--json"]].concat(), input);
    assert_eq!(err, "");
    serde_json::from_str(&out).unwrap()
}

/// What a command that fails says.
#[track_caller]
fn complaint(args: &[&str], input: &[u8]) -> String {
    let output = semel(args, input);
    assert_eq!((output.status.code(), output.stdout), (Some(1), vec![]));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn groups_are_shown_in_a_table_with_totals_below() {
    let (out, err) = run_duplicates(&["orders.csv"], "");
    assert_eq!(out, include_str!("duplicates/orders.txt"));
    assert_eq!(err, "");
    let (out, _) = run_duplicates(&["orders.csv", "--limit", "1"], "");
    assert!(out.contains("\nand 2 more: --limit 0 shows all\n"), "{out}");
    assert!(out.contains("surplus orders          4, 40.000 % of all\n"), "over all: {out}");
}

#[test]
fn a_program_gets_everything_with_exact_amounts() {
    let all = found(&["orders.csv"], "");
    assert_eq!(all["groups"].as_array().unwrap().len(), 3);
    assert_eq!(
        all["groups"][1],
        json!({
            "when": "2026-03-01T10:00:00Z",
            "customer": "c-17",
            "product": "tea-250g",
            "amount": "49.90",
            "currency": "EUR",
            "orders": 3,
            "seconds_between": [1.2, 30.0],
            "lines": [2, 3, 4],
            "order_ids": ["1", "2", "3"],
        })
    );
    assert_eq!(
        all["surplus_amounts"],
        json!([
            { "amount": "109.75", "currency": "EUR" },
            { "amount": "120.00", "currency": "USD" },
        ])
    );
    let gaps = json!({ "under_2_seconds": 2, "under_30_seconds": 0, "longer": 2 });
    assert_eq!(all["gaps"], gaps);
    assert_eq!((&all["orders"], &all["surplus_orders"]), (&json!(10), &json!(4)));
}

#[test]
fn findings_are_an_exit_code_and_orders_without_ids_have_lines() {
    let row = "ada,tea,5,1772359200\n";
    let orders = format!("user,sku,total,time\n{row}\"two\nlines\",tea,5,1772359200\n{row}");
    assert_eq!(semel(&["-"], orders.as_bytes()).status.code(), Some(5));
    let once = format!("user,sku,total,time\n{row}");
    assert_eq!(semel(&["-"], once.as_bytes()).status.code(), Some(0));
    let (out, _) = run_duplicates(&["-"], &orders);
    assert!(out.lines().next().unwrap().ends_with("  LINES"), "{out}");
    assert!(out.lines().nth(1).unwrap().ends_with("  2, 5"), "{out}");
    let group = found(&["-"], &orders)["groups"][0].clone();
    assert_eq!((&group["lines"], group.get("order_ids")), (&json!([2, 5]), None));
    let named = format!(
        "user,sku,total,time,slip\n{}{}",
        "ada,tea,5,1772359200,s-1\n", "ada,tea,5,1772359201,s-2\n"
    );
    let group = found(&["-", "--order", "slip"], &named)["groups"][0].clone();
    assert_eq!(group["order_ids"], json!(["s-1", "s-2"]));
}

#[test]
fn doubled_refunds_are_shown_apart_and_take_nothing_off_the_surplus() {
    let mut orders = "user,sku,total,time\n".to_owned();
    for (user, total) in [("ada", "-49.90"), ("ada", "-49.90"), ("eve", "20.00"), ("eve", "20")] {
        writeln!(orders, "{user},tea,{total},1772359200").unwrap();
    }
    let (out, _) = run_duplicates(&["-"], &orders);
    let lines = "surplus amount          20.00\nsurplus refunds         49.90\n";
    assert!(out.contains(lines), "{out}");
    let all = found(&["-"], &orders);
    assert_eq!(all["surplus_amounts"], json!([{ "amount": "20.00" }]));
    assert_eq!(all["surplus_refunds"], json!([{ "amount": "49.90" }]));
    assert_eq!(all["groups"][0]["amount"], "-49.90");
    let refunds: String = orders.lines().take(3).map(|line| format!("{line}\n")).collect();
    let (out, _) = run_duplicates(&["-"], &refunds);
    assert!(!out.contains("surplus amount") && out.contains("surplus refunds"), "{out}");
}

#[test]
fn the_window_is_what_was_typed() {
    let orders =
        |within: &str| found(&["orders.csv", "--within", within], "")["surplus_orders"].clone();
    assert_eq!(["0s", "2s", "30s", "2h"].map(orders), [1, 2, 3, 5].map(Value::from));
}

#[test]
fn another_dialect_with_other_names_is_read_too() {
    let names = ["--customer", "Kunde", "--product", "artikel", "--amount", "Betrag"];
    let args = [&["semicolons.csv", "--time", "Zeit"], &names[..]].concat();
    let all = found(&args, "");
    assert_eq!((&all["orders"], &all["groups_total"]), (&json!(3), &json!(1)));
    assert_eq!(all["surplus_amounts"], json!([{ "amount": "1234.50" }]));
    let error = complaint(&["semicolons.csv"], b"");
    let expected = "error: semicolons.csv: which column has the customer, and which the product, \
                    and which the amount, and which the time? The columns are `Kunde`, `Artikel`, \
                    `Betrag`, `Zeit`. Select one with --customer COLUMN --product COLUMN \
                    --amount COLUMN --time COLUMN\n";
    assert_eq!(error, expected);
    // What stands between columns can be typed, where the first line misleads.
    let odd = "user|\"a;b;c;d\"|sku|total|time\nada|x|tea|5|1772359207\nada|x|tea|5|1772359208\n";
    assert_eq!(found(&["-"], odd)["groups_total"], 1);
    assert_eq!(found(&["-", "--separator", "|"], odd)["groups_total"], 1);
    assert!(complaint(&["-", "--separator", "tab"], odd.as_bytes()).contains("which column"));
}

#[test]
fn an_amount_that_could_be_two_counts_as_it_was_said_or_not_at_all() {
    let orders = "user,sku,total,time\nada,tea,1.234,1772359200\nada,tea,1.234,1772359201\n";
    let error = complaint(&["-"], orders.as_bytes());
    let why = "the amount `1.234` could be thousands or decimals: say --decimal . or --decimal ,";
    assert!(error.contains(why), "{error}");
    let surplus = |decimal: &str| {
        found(&["-", "--decimal", decimal], orders)["surplus_amounts"][0]["amount"].clone()
    };
    assert_eq!([".", ","].map(surplus), ["1.234", "1234"].map(Value::from));
    assert_eq!(semel(&["-", "--decimal", ";"], b"").status.code(), Some(2));
}

#[test]
fn rows_that_cannot_be_read_are_counted_and_the_first_are_named() {
    let mut orders = "user,sku,total,time\n".to_owned();
    orders +=
        "ada,tea,5,1772359200\nada,tea,five,1772359201\nada,tea,5,yesterday\n,tea,5,1772359207\n";
    orders += "ada,tea\n\"two\nlines\",tea,5,\nada,tea,5,2026-03-01\nada,tea,5,1772359201\n";
    let (out, err) = run_duplicates(&["-"], &orders);
    assert!(out.contains("orders read             2\nrows not read           6\n"), "{out}");
    assert!(out.contains("surplus orders          1, 50.000 % of all\n"), "{out}");
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(lines.len(), 6, "{err}");
    assert_eq!(lines[0], "line 3: the amount `five` is not a number such as 49.90");
    assert!(lines[1].starts_with("line 4: the time `yesterday` cannot be read"), "{err}");
    assert_eq!(lines[2], "line 5: the customer is empty");
    assert_eq!(lines[3], "line 6: it has 2 columns, and the time would be column 4");
    assert_eq!(lines[4], "line 7: the time is empty");
    assert_eq!(lines[5], "and 1 more rows that could not be read");
    let all = found(&["-"], &orders);
    assert_eq!((&all["bad_rows"], &all["first_bad_rows"][3]["line"]), (&json!(6), &json!(6)));
}

#[test]
fn unreadable_input_is_reported_and_fails() {
    let bad = b"user,sku,total,time\nada,tea,five,1772359207\n";
    let error = complaint(&["-"], bad);
    assert!(error.starts_with("error: standard input: no row could be read. Line 2: "), "{error}");
    let error = complaint(&["-", "--json"], bad);
    let error: Value = serde_json::from_str(&error).unwrap();
    assert_eq!(error["exit_code"], 1);
    assert!(complaint(&["none.csv"], b"").contains("none.csv: No such file"));
    assert!(complaint(&["-"], b"").contains("the first line is empty"));
    assert!(complaint(&["-"], b"\xFF\xFEu\0").contains("UTF-16"));
    assert!(complaint(&["."], b"").contains("Is a directory"));
    assert_eq!(semel(&["-", "--within", "10"], b"").status.code(), Some(2));
    let (out, _) = run_duplicates(&["-"], "user,sku,total,time\n");
    assert!(out.starts_with("orders read             0\n"), "{out}");
}

#[test]
fn text_of_others_cannot_write_to_the_terminal() {
    let row = |second: &str| format!("\"a\u{1b}[2Jb\nc\",tea,5,177235920{second}\n");
    let orders = format!("user,sku,total,time\n{}{}", row("1"), row("2"));
    let (out, _) = run_duplicates(&["-"], &orders);
    assert!(!out.contains('\u{1b}') && out.contains("a\\u001b[2Jb\\nc"), "{out}");
}

#[test]
fn many_rows_in_any_order_are_read_as_they_come() {
    let mut orders = "user,sku,total,time\n".to_owned();
    // Each customer orders once, and every hundredth once more five seconds later, far below.
    for number in 0..50_000 {
        writeln!(orders, "u{number},tea,9.99,{}", 1_772_359_200 + number).unwrap();
    }
    for number in (0..50_000).rev().step_by(100) {
        writeln!(orders, "u{number},tea,9.9900,{}", 1_772_359_205 + number).unwrap();
    }
    let all = found(&["-"], &orders);
    assert_eq!((&all["orders"], &all["groups_total"]), (&json!(50_500), &json!(500)));
    assert_eq!(all["surplus_amounts"], json!([{ "amount": "4995.0000" }]));
    assert_eq!(all["gaps"]["under_30_seconds"], 500);
}

#[test]
fn the_guide_shows_what_is_printed() {
    let guide = include_str!("../../../docs/guide/rolling-it-out.md");
    let printed = include_str!("duplicates/orders.txt");
    assert!(guide.contains(&format!("$ semel duplicates orders.csv\n{printed}```\n")), "{guide}");
}
