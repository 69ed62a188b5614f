//! Streams an answer through while the handler writes it, and holds its last chunk back.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use semel::core::Reason;
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    task::coop::consume_budget,
    time::{Instant, timeout, timeout_at},
};

use crate::{
    BoxError,
    buffered_body::{BodyChunk, BufferedBody, ChunkReceiver, QueuedChunk},
    handler_signals::lost_after,
};

/// How many chunks may be queued for a slow client.
const QUEUED_CHUNKS_MAX: usize = 4;

/// How many bytes may be queued for it, if that is more than one chunk.
const QUEUED_BYTES_MAX: u32 = 32 << 10;

/// The sending side of a streamed answer.
#[derive(Debug)]
pub(crate) struct StreamSender {
    /// `None` once the client is gone: it must not get data after a gap.
    ahead: Option<mpsc::Sender<QueuedChunk>>,
    /// The free part of [`QUEUED_BYTES_MAX`].
    room: Arc<Semaphore>,
    /// Apart from the queue, so that a slow client does not delay the recording of the operation.
    last: oneshot::Sender<BufferedBody>,
    /// How long the answer is read after its client has disconnected.
    read_on: Duration,
    read_on_until: Option<Instant>,
}

fn room() -> Arc<Semaphore> {
    let bytes = usize::try_from(QUEUED_BYTES_MAX).unwrap_or(Semaphore::MAX_PERMITS);
    Arc::new(Semaphore::new(bytes))
}

/// A chunk that is larger than the whole queue takes all of it.
fn room_for(chunk: &BodyChunk) -> u32 {
    match chunk {
        BodyChunk::Data(data) => {
            u32::try_from(data.len()).unwrap_or(u32::MAX).min(QUEUED_BYTES_MAX)
        }
        BodyChunk::Broken(_) => 0,
    }
}

/// A channel for an answer of this many bytes, if that is known.
pub(crate) fn stream_channel(
    bytes: Option<u64>,
    read_on: Duration,
) -> (StreamSender, ChunkReceiver) {
    let (ahead, chunks) = mpsc::channel(QUEUED_CHUNKS_MAX);
    let (last, held) = oneshot::channel();
    (
        StreamSender { ahead: Some(ahead), room: room(), last, read_on, read_on_until: None },
        ChunkReceiver { ahead: chunks, last: held, bytes },
    )
}

/// The chunks of an answer that was truncated after these bytes.
pub(crate) fn truncated(begun: Bytes, error: BoxError) -> ChunkReceiver {
    let (ahead, chunks) = mpsc::channel(QUEUED_CHUNKS_MAX);
    let (_, held) = oneshot::channel();
    if !begun.is_empty() {
        let _ = ahead.try_send((BodyChunk::Data(begun), None));
    }
    let _ = ahead.try_send((BodyChunk::Broken(error), None));
    // The head declares how many bytes there would have been.
    ChunkReceiver { ahead: chunks, last: held, bytes: None }
}

impl StreamSender {
    pub(crate) async fn send(&mut self, chunk: BodyChunk) {
        let Some(ahead) = &self.ahead else { return };
        let room = Arc::clone(&self.room).acquire_many_owned(room_for(&chunk));
        let sent = async { ahead.send((chunk, room.await.ok())).await };
        if !matches!(timeout(self.read_on, sent).await, Ok(Ok(()))) {
            self.disconnect();
        }
    }

    /// Sends the last chunk, which the client gets once the operation is recorded.
    pub(crate) fn finish(self, last: BufferedBody) {
        if self.ahead.is_some() {
            let _ = self.last.send(last);
        }
    }

    fn disconnect(&mut self) {
        self.ahead = None;
        self.read_on_until.get_or_insert_with(|| Instant::now() + self.read_on);
    }
}

/// Streams a body through, and returns its last data and its trailers, which were not sent: either
/// of them would let a client take the answer for complete before it is recorded. An empty frame
/// does not replace the last data. The error is the reason why the end could not be read.
pub(crate) async fn stream_through<B>(
    mut body: Pin<Box<B>>,
    begun: Bytes,
    client: &mut StreamSender,
) -> Result<BufferedBody, Reason>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut bytes = begun.len();
    let mut held = begun;
    let mut trailers: Option<HeaderMap> = None;
    loop {
        match next(body.as_mut(), client).await? {
            None => return Ok(BufferedBody::new(held, trailers)),
            Some(Err(error)) => {
                let reason = lost_after(bytes, &error);
                client.send(BodyChunk::Broken(error)).await;
                return Err(reason);
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => {
                    bytes = bytes.saturating_add(data.len());
                    let before = std::mem::replace(&mut held, data);
                    if !before.is_empty() {
                        client.send(BodyChunk::Data(before)).await;
                    }
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            },
        }
    }
}

/// The next frame, while the client reads, and for a limited time after that.
async fn next<B>(
    mut body: Pin<&mut B>,
    client: &mut StreamSender,
) -> Result<Option<Result<Frame<Bytes>, BoxError>>, Reason>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    // A body that is always ready must not monopolise its thread.
    consume_budget().await;
    let mut frame = body.frame();
    if let Some(ahead) = &client.ahead {
        tokio::select! {
            biased;
            () = ahead.closed() => client.disconnect(),
            frame = &mut frame => return Ok(frame.map(|frame| frame.map_err(Into::into))),
        }
    }
    let until = client.read_on_until.unwrap_or_else(Instant::now);
    let timed_out =
        || Reason::TimedOut(u64::try_from(client.read_on.as_millis()).unwrap_or(u64::MAX));
    // A ready frame would be taken before the timeout is checked.
    if Instant::now() >= until {
        return Err(timed_out());
    }
    let frame = timeout_at(until, frame).await.map_err(|_| timed_out())?;
    Ok(frame.map(|frame| frame.map_err(Into::into)))
}
