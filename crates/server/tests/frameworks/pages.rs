//! The guide shows the very files that these tests run.

use std::fs;

use crate::HERE;

#[test]
fn the_page_for_fastapi_shows_the_app_that_is_tested() {
    shows("in-front-of-fastapi.md", "python", "fastapi/app.py");
}

#[test]
fn the_page_for_express_shows_the_app_that_is_tested() {
    shows("in-front-of-express.md", "js", "express/app.js");
}

fn shows(page: &str, language: &str, file: &str) {
    let page = fs::read_to_string(format!("{HERE}/../../../../docs/guide/{page}")).unwrap();
    let file = fs::read_to_string(format!("{HERE}/{file}")).unwrap();
    let shown = format!("```{language}\n{file}```\n");
    assert!(page.contains(&shown), "the page does not show this:\n{shown}");
}
