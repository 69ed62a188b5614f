//! Passing an answer on while it is written, with its last piece held back.

use std::{pin::Pin, time::Duration};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use semel::core::Reason;
use tokio::{
    sync::{mpsc, oneshot},
    task::coop::consume_budget,
    time::{Instant, timeout, timeout_at},
};

use crate::{
    BoxError,
    body::{Piece, Pieces, Whole},
    capture::lost_after,
};

/// How many pieces may wait for a client that reads slowly.
const PIECES_AHEAD: usize = 4;

/// How long an answer is read on after its client left, or took nothing for as long, unless
/// [`IdempotencyLayer::read_on`](crate::IdempotencyLayer::read_on) says otherwise.
pub const READ_ON_DEFAULT: Duration = Duration::from_secs(60);

/// Where pieces go.
#[derive(Debug)]
pub(crate) struct Tap {
    /// `None` once the client is gone: it must not be given what follows a gap.
    ahead: Option<mpsc::Sender<Piece>>,
    /// Apart from the others, so that a client that reads slowly does not keep the end of the
    /// operation from being recorded.
    last: oneshot::Sender<Whole>,
    /// How long the answer is read on after its client left.
    read_on: Duration,
    read_on_until: Option<Instant>,
}

/// A way for an answer of so many bytes, where that is known.
pub(crate) fn pipe(bytes: Option<u64>, read_on: Duration) -> (Tap, Pieces) {
    let (ahead, pieces) = mpsc::channel(PIECES_AHEAD);
    let (last, held) = oneshot::channel();
    (
        Tap { ahead: Some(ahead), last, read_on, read_on_until: None },
        Pieces { ahead: pieces, last: held, bytes },
    )
}

/// The pieces of an answer that broke off after these bytes.
pub(crate) fn cut(begun: Bytes, error: BoxError) -> Pieces {
    let (ahead, pieces) = mpsc::channel(PIECES_AHEAD);
    let (_, held) = oneshot::channel();
    if !begun.is_empty() {
        let _ = ahead.try_send(Piece::Data(begun));
    }
    let _ = ahead.try_send(Piece::Broken(error));
    // How many bytes there would have been, the head says.
    Pieces { ahead: pieces, last: held, bytes: None }
}

impl Tap {
    pub(crate) async fn send(&mut self, piece: Piece) {
        let Some(ahead) = &self.ahead else { return };
        if !matches!(timeout(self.read_on, ahead.send(piece)).await, Ok(Ok(()))) {
            self.hang_up();
        }
    }

    /// Hands over the last piece, which its client gets once the operation is recorded.
    pub(crate) fn finish(self, last: Whole) {
        if self.ahead.is_some() {
            let _ = self.last.send(last);
        }
    }

    fn hang_up(&mut self) {
        self.ahead = None;
        self.read_on_until.get_or_insert_with(|| Instant::now() + self.read_on);
    }
}

/// Passes a body on, and returns its last data and its trailers, which were not passed on: with
/// either of them a client could take the answer for whole before it is recorded. An empty frame
/// says nothing, so it does not push out the last that does. The error is why the end could not be
/// read.
pub(crate) async fn pump<B>(
    mut body: Pin<&mut B>,
    begun: Bytes,
    client: &mut Tap,
) -> Result<Whole, Reason>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut bytes = begun.len();
    let mut held = begun;
    let mut trailers: Option<HeaderMap> = None;
    loop {
        match next(body.as_mut(), client).await? {
            None => return Ok(Whole::new(held, trailers)),
            Some(Err(error)) => {
                let reason = lost_after(bytes, &error);
                client.send(Piece::Broken(error)).await;
                return Err(reason);
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => {
                    bytes = bytes.saturating_add(data.len());
                    let before = std::mem::replace(&mut held, data);
                    if !before.is_empty() {
                        client.send(Piece::Data(before)).await;
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
    client: &mut Tap,
) -> Result<Option<Result<Frame<Bytes>, BoxError>>, Reason>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    // A body that is always ready must not keep its thread from everybody else.
    consume_budget().await;
    let mut frame = body.frame();
    if let Some(ahead) = &client.ahead {
        tokio::select! {
            biased;
            () = ahead.closed() => client.hang_up(),
            frame = &mut frame => return Ok(frame.map(|frame| frame.map_err(Into::into))),
        }
    }
    let until = client.read_on_until.unwrap_or_else(Instant::now);
    let timed_out =
        || Reason::TimedOut(u64::try_from(client.read_on.as_millis()).unwrap_or(u64::MAX));
    // A frame that is ready would be taken before anybody looks at the clock.
    if Instant::now() >= until {
        return Err(timed_out());
    }
    let frame = timeout_at(until, frame).await.map_err(|_| timed_out())?;
    Ok(frame.map(|frame| frame.map_err(Into::into)))
}
