//! Resets an HTTP/2 stream whose client accepts nothing of the response.
//!
//! A client can read its connection and yet give one of its streams no window. The unsent data
//! stays in memory, and with it a recorded response or an upstream connection. hyper waits for the
//! window without polling the body, so the body cannot end the stream. But hyper spawns the task of
//! each stream on our executor. The executor drops the task of a stream that makes no progress, and
//! h2 then sends `RST_STREAM`. Other streams of the connection continue.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use tokio::time::Instant;

use semel_http1::lazy_timer::LazyTimer;
use semel_telemetry::metrics::Metrics;

/// Size of the tail of a chunk that is sent separately, as a copy. The task of a stream ends when
/// h2 has taken the last chunk, which it does as soon as there is any window. The part that does
/// not fit the window then stays in memory until the connection ends. The copy limits it to this
/// many bytes.
const TAIL_BYTES: usize = 1024;

tokio::task_local! {
    /// The progress of the stream that the current task serves.
    static STREAM_PROGRESS: Arc<StreamProgress>;
}

/// Progress of a response.
#[derive(Debug)]
struct StreamProgress {
    begun: Instant,
    /// Chunks that hyper has taken and not sent.
    unsent: AtomicUsize,
    /// When bytes were last sent or a chunk began to wait, in milliseconds since `begun`.
    last_progress_ms: AtomicU64,
}

impl StreamProgress {
    fn new() -> Self {
        Self {
            begun: Instant::now(),
            unsent: AtomicUsize::new(0),
            last_progress_ms: AtomicU64::new(0),
        }
    }

    fn record(&self) {
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_progress_ms.store(now, Ordering::Relaxed);
    }

    /// Ready when a chunk has waited for `timeout` and nothing was sent.
    fn poll_stalled(
        &self,
        timeout: Duration,
        timer: &mut LazyTimer,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        while let Some(since) = self.waiting_since() {
            ready!(timer.poll(since + timeout, context));
            if self.waiting_since() == Some(since) {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    /// Since when the stream makes no progress; `None` if nothing waits to be sent.
    fn waiting_since(&self) -> Option<Instant> {
        let waits = self.unsent.load(Ordering::Relaxed) > 0;
        waits.then(|| {
            self.begun + Duration::from_millis(self.last_progress_ms.load(Ordering::Relaxed))
        })
    }
}

/// Runs the tasks of a connection's streams.
#[derive(Clone, Debug)]
pub(crate) struct StreamExecutor {
    pub(crate) timeout: Duration,
    pub(crate) metrics: Arc<Metrics>,
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        let progress = Arc::new(StreamProgress::new());
        let task = STREAM_PROGRESS.scope(Arc::clone(&progress), task);
        let Self { timeout, metrics } = self.clone();
        tokio::spawn(async move {
            let mut task = pin!(task);
            let mut timer = LazyTimer::default();
            let is_stalled = poll_fn(|context| {
                if task.as_mut().poll(context).is_ready() {
                    return Poll::Ready(false);
                }
                progress.poll_stalled(timeout, &mut timer, context).map(|()| true)
            });
            if is_stalled.await {
                metrics.stream_reset();
            }
        });
    }
}

/// The body of an HTTP/2 response.
#[derive(Debug)]
pub(crate) struct StreamBody<B> {
    body: B,
    /// The tail of the last chunk.
    tail: Option<Bytes>,
    progress: Option<Arc<StreamProgress>>,
}

impl<B> StreamBody<B> {
    /// Must be called in the task of its stream.
    pub(crate) fn new(body: B) -> Self {
        Self { body, tail: None, progress: STREAM_PROGRESS.try_with(Arc::clone).ok() }
    }
}

impl<B> Body for StreamBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = TrackedChunk;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<TrackedChunk>, B::Error>>> {
        let Self { body, tail, progress } = &mut *self;
        if let Some(tail) = tail.take() {
            return Poll::Ready(Some(Ok(Frame::data(TrackedChunk::new(tail, progress)))));
        }
        let frame = ready!(Pin::new(body).poll_frame(context)?);
        let split = |mut data: Bytes| {
            let end = data.split_off(data.len().saturating_sub(TAIL_BYTES));
            let end = Bytes::copy_from_slice(&end);
            if data.is_empty() {
                return TrackedChunk::new(end, progress);
            }
            *tail = Some(end);
            TrackedChunk::new(data, progress)
        };
        Poll::Ready(frame.map(|frame| Ok(frame.map_data(split))))
    }

    fn is_end_stream(&self) -> bool {
        self.tail.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let tail = self.tail.as_ref().map_or(0, |tail| u64::try_from(tail.len()).unwrap_or(0));
        let rest = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(tail));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(tail));
        }
        hint
    }
}

/// Bytes that record when they are sent.
#[derive(Debug)]
pub(crate) struct TrackedChunk {
    bytes: Bytes,
    progress: Option<Arc<StreamProgress>>,
}

impl TrackedChunk {
    fn new(bytes: Bytes, progress: &Option<Arc<StreamProgress>>) -> Self {
        if let Some(progress) = progress
            && progress.unsent.fetch_add(1, Ordering::Relaxed) == 0
        {
            progress.record();
        }
        Self { bytes, progress: progress.clone() }
    }
}

impl Buf for TrackedChunk {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if let Some(progress) = &self.progress {
            progress.record();
        }
    }
}

impl Drop for TrackedChunk {
    fn drop(&mut self) {
        if let Some(progress) = &self.progress {
            progress.unsent.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
