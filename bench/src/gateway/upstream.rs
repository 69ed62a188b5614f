//! The API behind the proxies: an ordinary server on axum, at once or after a delay.
//!
//! What a proxy sends has to be what the load sent: to anything else the answer is 400, which the
//! load takes for an error.

use std::{process::Command, time::Duration};

use anyhow::Context as _;
use axum::{
    Router,
    body::Bytes,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::post,
};

use crate::http::{
    exchange::{ANSWER, LOCATION, ORDER, PATH},
    program::Program,
    serve::serve,
};

/// An upstream in a process of its own that runs as long as this value lives.
#[derive(Debug)]
pub(crate) struct Upstream {
    program: Program,
    pub(crate) port: u16,
}

impl Upstream {
    pub(crate) fn start(delay: Duration) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let delay = delay.as_millis().to_string();
        let (program, port) = Program::serve(command.arg("--serve-upstream").arg(delay))?;
        Ok(Self { program, port })
    }

    pub(crate) fn process(&self) -> u32 {
        self.program.id()
    }
}

/// Prints the port that it is bound to and serves until its standard input ends: with the process
/// that started it.
pub(crate) fn run(words: &[&str]) -> anyhow::Result<()> {
    let millis = words.first().map_or(Ok(0), |word| word.parse());
    let delay = Duration::from_millis(millis.context("the delay is in milliseconds")?);
    let charge = move |order: Bytes| async move {
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        answer(&order)
    };
    serve("upstream", Router::new().route(PATH, post(charge)))
}

fn answer(order: &[u8]) -> Response {
    if order != ORDER.as_bytes() {
        return (StatusCode::BAD_REQUEST, "another body was sent").into_response();
    }
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::LOCATION, LOCATION)];
    (StatusCode::CREATED, headers, ANSWER).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upstream_refuses_unexpected_requests() {
        assert_eq!(answer(ORDER.as_bytes()).status(), StatusCode::CREATED);
        let other = ORDER.replace("12990", "12991");
        assert_eq!(answer(other.as_bytes()).status(), StatusCode::BAD_REQUEST);
    }
}
