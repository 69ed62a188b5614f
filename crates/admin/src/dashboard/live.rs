//! Live updates: one task counts once a second, and renders once for all who watch.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http_body_util::channel::Channel;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{history::History, now, page_state::PageState, visitor::Visitor};

/// Time between two updates.
const UPDATE_INTERVAL: Duration = Duration::from_secs(1);

/// Timeout for a browser that accepts no bytes.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// Counts until it is dropped.
pub(crate) async fn run(state: Arc<PageState>) {
    let feed = &state.dashboard().live;
    let mut period = interval(UPDATE_INTERVAL);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        period.tick().await;
        let is_watched = feed.update.receiver_count() > 0;
        let update = state.with_history(|history| is_watched.then(|| message(history)));
        if let Some(update) = update {
            feed.update.send_if_modified(|last| {
                let is_new = *last != update;
                *last = update;
                is_new
            });
        }
    }
}

/// An event of the stream.
fn message(history: &History) -> Bytes {
    let html = now::live_parts(history).into_string().replace(['\n', '\r'], " ");
    format!("event: now\ndata: {html}\n\n").into()
}

/// `GET /events`: the numbers whenever they change.
pub(super) async fn events(State(state): State<Arc<PageState>>, _visitor: Visitor) -> Response {
    let feed = &state.dashboard().live;
    let permit = Arc::clone(&feed.streams).try_acquire_owned();
    let (false, Ok(permit)) = (*state.draining.borrow(), permit) else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let mut updates = feed.update.subscribe();
    let mut draining = state.draining.clone();
    let first = state.with_history(message);
    let (mut sender, body) = Channel::<Bytes>::new(1);
    tokio::spawn(async move {
        let _permit = permit;
        let mut update = first;
        loop {
            match timeout(SEND_TIMEOUT, sender.send_data(update)).await {
                Ok(Ok(())) => {}
                // The browser has gone, or reads nothing.
                Ok(Err(_)) | Err(_) => return,
            }
            tokio::select! {
                changed = updates.changed() => if changed.is_err() { return },
                // The browser must not delay the shutdown.
                _ = draining.changed() => return,
            }
            update = updates.borrow_and_update().clone();
        }
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::new(body)).into_response()
}
