//! Passing an answer on while it is written, with its last piece held back.

use std::{pin::Pin, time::Duration};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use crate::{
    BoxError,
    body::{Piece, Whole},
};

/// How many pieces may wait for a client that reads slowly.
pub(crate) const PIECES_AHEAD: usize = 4;

/// How long an answer is read to its end after its client hung up. The operation belongs to the
/// server; but an endless stream that nobody reads must end some time.
pub const DRAIN_AFTER_HANG_UP: Duration = Duration::from_secs(60);

/// The answer did not come to its end.
#[derive(Debug)]
pub(crate) struct Broken;

/// Passes a body on, and returns its last data and its trailers, which were not passed on: with
/// either of them a client could take the answer for whole before it is recorded. An empty frame
/// says nothing, so it does not push out the last that does.
pub(crate) async fn pump<B>(
    mut body: Pin<&mut B>,
    begun: Bytes,
    client: &mpsc::Sender<Piece>,
) -> Result<Whole, Broken>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut held = begun;
    let mut trailers: Option<HeaderMap> = None;
    let mut drain_until = None;
    loop {
        match next(body.as_mut(), client, &mut drain_until).await? {
            None => return Ok(Whole::new(held, trailers)),
            Some(Err(error)) => {
                let _ = client.send(Piece::Broken(error)).await;
                return Err(Broken);
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => {
                    let before = std::mem::replace(&mut held, data);
                    if !before.is_empty() {
                        // A client that is gone is noticed when the next frame is awaited.
                        let _ = client.send(Piece::Data(before)).await;
                    }
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            },
        }
    }
}

/// The next frame, for as long as somebody reads, and for a while after that.
async fn next<B>(
    mut body: Pin<&mut B>,
    client: &mpsc::Sender<Piece>,
    drain_until: &mut Option<Instant>,
) -> Result<Option<Result<Frame<Bytes>, BoxError>>, Broken>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut frame = body.frame();
    if drain_until.is_none() {
        tokio::select! {
            biased;
            () = client.closed() => {}
            frame = &mut frame => return Ok(frame.map(|frame| frame.map_err(Into::into))),
        }
    }
    let until = drain_until.get_or_insert_with(|| Instant::now() + DRAIN_AFTER_HANG_UP);
    let frame = timeout_at(*until, frame).await.map_err(|_| Broken)?;
    Ok(frame.map(|frame| frame.map_err(Into::into)))
}
