//! The body type of requests and answers in the layer.

use std::{
    error, fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use semel::{RecordedReply, core::Reply};

use crate::{
    BoxError,
    buffered_body::{BodyChunk, BufferedBody, ChunkReceiver, length},
    tee_body::BodyTee,
};

pin_project! {
    /// A body that passes through, or one that the layer holds in memory: the same type for
    /// requests and for answers.
    ///
    /// An unguarded body passes through unchanged. The handler of a guarded request gets its body
    /// in one chunk. The answer to a guarded request is one chunk too, unless it is large or a
    /// stream: then its last chunk is held back until the operation is recorded, and if recording
    /// fails the body ends with an error.
    pub struct Body<B> {
        #[pin]
        kind: BodyInner<B>,
    }
}

pin_project! {
    #[project = BodyInnerProjection]
    enum BodyInner<B> {
        Passed { #[pin] body: B },
        // The tee is boxed, so that a body is not larger where it is not observed.
        Observed { #[pin] body: B, tee: Box<BodyTee> },
        Buffered { buffered: BufferedBody },
        Streaming { streaming: ChunkStream },
    }
}

impl<B> Body<B> {
    pub(crate) const fn passed(body: B) -> Self {
        Self { kind: BodyInner::Passed { body } }
    }

    /// A body that passes through unchanged, for an inner service that is also called outside the
    /// layer.
    pub const fn new(body: B) -> Self {
        Self::passed(body)
    }

    /// An empty body.
    #[must_use]
    pub fn empty() -> Self {
        Self::buffered(BufferedBody::default())
    }

    /// A body that passes through and is observed.
    pub(crate) fn observed(body: B, tee: BodyTee) -> Self {
        Self { kind: BodyInner::Observed { body, tee: Box::new(tee) } }
    }

    pub(crate) const fn buffered(buffered: BufferedBody) -> Self {
        Self { kind: BodyInner::Buffered { buffered } }
    }

    /// `recorded` completes when the operation is recorded; `None` if it already is.
    pub(crate) const fn streaming(chunks: ChunkReceiver, recorded: Option<RecordedReply>) -> Self {
        let streaming = ChunkStream { chunks, recorded, stage: StreamStage::Flowing };
        Self { kind: BodyInner::Streaming { streaming } }
    }
}

impl<B> http_body::Body for Body<B>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.project().kind.project() {
            BodyInnerProjection::Passed { body } => {
                body.poll_frame(context).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
            }
            BodyInnerProjection::Observed { mut body, tee } => {
                let frame = ready!(body.as_mut().poll_frame(context));
                let frame = frame.map(|frame| frame.map_err(Into::into));
                tee.on_frame(frame.as_ref(), body.is_end_stream());
                Poll::Ready(frame)
            }
            BodyInnerProjection::Buffered { buffered } => Poll::Ready(buffered.next().map(Ok)),
            BodyInnerProjection::Streaming { streaming } => streaming.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyInner::Passed { body } | BodyInner::Observed { body, .. } => body.is_end_stream(),
            BodyInner::Buffered { buffered } => buffered.is_empty(),
            BodyInner::Streaming { streaming } => streaming.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyInner::Passed { body } | BodyInner::Observed { body, .. } => body.size_hint(),
            BodyInner::Buffered { buffered } => buffered.size_hint(),
            BodyInner::Streaming { streaming } => streaming.size_hint(),
        }
    }
}

impl<B> fmt::Debug for Body<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.kind {
            BodyInner::Passed { .. } => "Body(passed)",
            BodyInner::Observed { .. } => "Body(observed)",
            BodyInner::Buffered { .. } => "Body(whole)",
            BodyInner::Streaming { .. } => "Body(live)",
        })
    }
}

/// A body that is sent while the handler writes it.
#[derive(Debug)]
struct ChunkStream {
    chunks: ChunkReceiver,
    recorded: Option<RecordedReply>,
    stage: StreamStage,
}

#[derive(Debug)]
enum StreamStage {
    Flowing,
    /// The last chunk has arrived and is not recorded yet.
    Held(BufferedBody),
    Recorded(BufferedBody),
    Broken,
}

impl ChunkStream {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            match &mut self.stage {
                StreamStage::Flowing => match ready!(self.chunks.ahead.poll_recv(context)) {
                    Some((BodyChunk::Data(data), _room)) => {
                        let length = length(&data);
                        self.chunks.bytes = self.chunks.bytes.map(|all| all.saturating_sub(length));
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                    Some((BodyChunk::Broken(error), _)) => return self.broken(error),
                    None => match ready!(Pin::new(&mut self.chunks.last).poll(context)) {
                        Ok(buffered) => self.stage = StreamStage::Held(buffered),
                        Err(_) => return self.broken(Incomplete::BrokeOff.into()),
                    },
                },
                StreamStage::Held(buffered) => {
                    let reply = match &mut self.recorded {
                        Some(recorded) => Some(ready!(Pin::new(recorded).poll(context))),
                        None => None,
                    };
                    if !matches!(reply, None | Some(Reply::Ran(_))) {
                        return self.broken(Incomplete::NotRecorded.into());
                    }
                    self.stage = StreamStage::Recorded(std::mem::take(buffered));
                }
                StreamStage::Recorded(buffered) => return Poll::Ready(buffered.next().map(Ok)),
                StreamStage::Broken => return Poll::Ready(None),
            }
        }
    }

    fn broken(&mut self, error: BoxError) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.stage = StreamStage::Broken;
        Poll::Ready(Some(Err(error)))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.stage {
            StreamStage::Flowing => self.chunks.bytes.map(SizeHint::with_exact).unwrap_or_default(),
            StreamStage::Held(buffered) | StreamStage::Recorded(buffered) => buffered.size_hint(),
            StreamStage::Broken => SizeHint::with_exact(0),
        }
    }

    const fn is_end(&self) -> bool {
        match &self.stage {
            StreamStage::Recorded(buffered) => buffered.is_empty(),
            StreamStage::Broken => true,
            StreamStage::Flowing | StreamStage::Held(_) => false,
        }
    }
}

/// Why a streaming body ends early.
#[derive(Debug)]
enum Incomplete {
    BrokeOff,
    NotRecorded,
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BrokeOff => "the operation broke off while its answer was sent",
            Self::NotRecorded => "the operation ended, but its outcome could not be recorded",
        })
    }
}

impl error::Error for Incomplete {}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use http_body::Body as _;
    use http_body_util::{BodyExt, Full};

    use super::*;
    use crate::{
        READ_ON_DEFAULT,
        capture::stream_through::{StreamSender, stream_channel},
    };

    fn trailers() -> HeaderMap {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        trailers
    }

    #[tokio::test]
    async fn a_body_passes_through_with_its_size() {
        let body = Body::passed(Full::new(Bytes::from_static(b"abc")));
        assert_eq!(body.size_hint().exact(), Some(3));
        assert_eq!(body.collect().await.unwrap().to_bytes(), "abc");
    }

    #[tokio::test]
    async fn a_whole_body_is_one_frame_and_its_trailers() {
        let data = Bytes::from_static(b"abc");
        let mut body =
            Body::<Full<Bytes>>::buffered(BufferedBody::new(data.clone(), Some(trailers())));
        assert_eq!((body.size_hint().lower(), body.size_hint().exact()), (3, None));
        assert!(!body.is_end_stream());
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(frame.as_ptr(), data.as_ptr(), "not copied");
        assert!(!body.is_end_stream());
        assert_eq!(body.frame().await.unwrap().unwrap().into_trailers().unwrap(), trailers());
        assert!(body.is_end_stream());
        assert!(body.frame().await.is_none());
    }

    #[test]
    fn an_empty_body_has_ended_before_it_is_read() {
        let body = Body::<Full<Bytes>>::buffered(BufferedBody::default());
        assert!(body.is_end_stream());
        assert_eq!(body.size_hint().exact(), Some(0));
    }

    fn streaming(bytes: Option<u64>) -> (StreamSender, Body<Full<Bytes>>) {
        let (sender, chunks) = stream_channel(bytes, READ_ON_DEFAULT);
        (sender, Body::streaming(chunks, None))
    }

    fn last(text: &'static str) -> BufferedBody {
        BufferedBody::new(Bytes::from_static(text.as_bytes()), Some(trailers()))
    }

    #[tokio::test]
    async fn a_live_body_counts_down_what_is_left_of_it() {
        let (mut sender, mut body) = streaming(Some(5));
        assert_eq!(body.size_hint().exact(), Some(5));
        sender.send(BodyChunk::Data(Bytes::from_static(b"abc"))).await;
        sender.finish(last("de"));
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "abc");
        assert_eq!(body.size_hint().exact(), Some(2));
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "de");
        assert!(!body.is_end_stream());
        assert_eq!(body.frame().await.unwrap().unwrap().into_trailers().unwrap(), trailers());
        assert!(body.is_end_stream());
        assert!(body.frame().await.is_none());
    }

    #[tokio::test]
    async fn a_live_body_of_unknown_size_does_not_guess() {
        let (sender, body) = streaming(None);
        assert_eq!(body.size_hint().exact(), None);
        sender.finish(last(""));
        assert_eq!(body.collect().await.unwrap().trailers(), Some(&trailers()));
    }

    #[tokio::test]
    async fn a_live_body_whose_writer_is_gone_ends_with_an_error() {
        let (sender, mut body) = streaming(None);
        drop(sender);
        let error = body.frame().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("broke off"));
        assert!(body.is_end_stream());
        assert!(body.frame().await.is_none());
    }
}
