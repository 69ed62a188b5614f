//! The style sheet, the script and the icon. Their paths contain a hash of their content, so that a
//! browser may keep them until the program changes.

use std::sync::LazyLock;

use axum::{http::header, response::IntoResponse};
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

pub(super) const STYLE: &str = include_str!("assets/dashboard.css");
pub(super) const SCRIPT: &str = include_str!("assets/dashboard.js");
const ICON: &str = include_str!("assets/icon.svg");

/// The relative path of the style sheet.
pub(super) static STYLE_PATH: LazyLock<String> = LazyLock::new(|| path("dashboard.css", STYLE));

/// The relative path of the script.
pub(super) static SCRIPT_PATH: LazyLock<String> = LazyLock::new(|| path("dashboard.js", SCRIPT));

fn path(name: &str, content: &str) -> String {
    let hash = HEXLOWER.encode(&Sha256::digest(content));
    format!("{name}?v={}", hash.get(..16).unwrap_or(&hash))
}

pub(super) async fn style() -> impl IntoResponse {
    asset("text/css; charset=utf-8", STYLE)
}

pub(super) async fn script() -> impl IntoResponse {
    asset("text/javascript; charset=utf-8", SCRIPT)
}

pub(super) async fn icon() -> impl IntoResponse {
    asset("image/svg+xml", ICON)
}

fn asset(content_type: &'static str, content: &'static str) -> impl IntoResponse {
    const CACHE: &str = "public, max-age=31536000, immutable";
    ([(header::CONTENT_TYPE, content_type), (header::CACHE_CONTROL, CACHE)], content)
}
