//! The guide shows the very files that these tests run.

use std::fs;

use semel::core::{
    Dialect, OnUnknown, Problem, RetryContext, dialect::KeyPlace, key::KEY_BYTES_MAX,
};

use crate::HERE;

#[test]
fn the_page_for_fastapi_shows_the_app_that_is_tested() {
    shows("in-front-of-fastapi.md", "python", "fastapi/app.py");
}

#[test]
fn the_page_for_express_shows_the_app_that_is_tested() {
    shows("in-front-of-express.md", "js", "express/app.js");
}

#[test]
fn the_page_for_fastapi_shows_the_retries_that_are_tested() {
    let page = read("in-front-of-fastapi.md");
    let client = fs::read_to_string(format!("{HERE}/clients/urllib3_retry.py")).unwrap();
    let (_, retry) = client.split_once("retry = urllib3.Retry(").unwrap();
    let (arguments, _) = retry.split_once("\n)\n").unwrap();
    let shown = format!("retry = urllib3.Retry({arguments}\n)\n");
    assert!(page.contains(&shown), "the page does not show this:\n{shown}");
}

#[test]
fn the_page_about_problems_has_a_row_for_each() {
    let page = read("client-errors.md");
    for problem in Problem::ALL {
        let retry = match (is_retried(*problem, OnUnknown::Hold), *problem) {
            (true, _) => "yes",
            (false, problem) if is_retried(problem, OnUnknown::Rerun) => "under `rerun`",
            (false, _) => "no",
        };
        let row = format!(
            "| `{}` | {} | `{}` | {retry} | ",
            problem.slug(),
            problem.status(),
            problem.error_type().as_str()
        );
        assert!(page.contains(&row), "the page has no row like this:\n{row}");
    }
    let rows = page.lines().filter(|line| line.starts_with("| `") && line.contains("_error` |"));
    assert_eq!(rows.count(), Problem::ALL.len());
}

#[test]
fn the_page_about_problems_has_a_row_for_each_dialect() {
    let page = read("client-errors.md");
    for dialect in Dialect::ALL {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{}`", dialect.name())));
        let row = row.unwrap_or_else(|| panic!("the page has no row for {dialect:?}"));
        let (KeyPlace::Header(place) | KeyPlace::Json(place)) = dialect.key() else { panic!() };
        let max = dialect.key_bytes_max().unwrap_or(KEY_BYTES_MAX);
        assert!(row.to_ascii_lowercase().contains(&format!("`{place}`")), "{row}");
        assert!(row.contains(&format!("| {max} |")), "{row}");
        for problem in Problem::ALL {
            let status = dialect.status(*problem);
            let differs = status != problem.status();
            let is_named = row.contains(&format!("`{}`", problem.slug())) && row.contains("400");
            assert!(!differs || (status == 400 && is_named), "{problem:?}: {row}");
        }
    }
}

fn is_retried(problem: Problem, on_unknown: OnUnknown) -> bool {
    problem.should_retry(RetryContext::guarded(on_unknown))
}

fn read(page: &str) -> String {
    fs::read_to_string(format!("{HERE}/../../../../docs/guide/{page}")).unwrap()
}

fn shows(page: &str, language: &str, file: &str) {
    let page = read(page);
    let file = fs::read_to_string(format!("{HERE}/{file}")).unwrap();
    let shown = format!("```{language}\n{file}```\n");
    assert!(page.contains(&shown), "the page does not show this:\n{shown}");
}
