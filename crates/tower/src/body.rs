//! The body of a request on its way in and of an answer on its way out.

use std::{
    error, fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use semel::{Pending, core::Reply};
use tokio::sync::{mpsc, oneshot};

use crate::{BoxError, observe::Ear};

pin_project! {
    /// A body that passes through, or one that the layer holds: the same type for requests and for
    /// answers.
    ///
    /// What is not guarded passes through as it is. The handler of a guarded request gets its body
    /// in one piece. The answer to a guarded request is one piece too, unless it is large or a
    /// stream: then its last piece stays back until the record says that the operation ran, and if
    /// the record cannot say so the body ends with an error.
    pub struct Body<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<B> {
        Passed { #[pin] body: B },
        // The ear is boxed, so that a body is not larger where nobody listens.
        Observed { #[pin] body: B, ear: Box<Ear> },
        Whole { whole: Whole },
        Live { live: Live },
    }
}

impl<B> Body<B> {
    pub(crate) const fn passed(body: B) -> Self {
        Self { kind: Kind::Passed { body } }
    }

    /// A body that passes through as it is, for an inner service that is also reached beside the
    /// layer.
    pub const fn new(body: B) -> Self {
        Self::passed(body)
    }

    /// A body that passes through while somebody listens.
    pub(crate) fn observed(body: B, ear: Ear) -> Self {
        Self { kind: Kind::Observed { body, ear: Box::new(ear) } }
    }

    pub(crate) const fn whole(whole: Whole) -> Self {
        Self { kind: Kind::Whole { whole } }
    }

    /// `pending` is the word that the operation is recorded; `None` if it came already.
    pub(crate) const fn live(pieces: Pieces, pending: Option<Pending>) -> Self {
        let live = Live { pieces, pending, stage: Stage::Flowing };
        Self { kind: Kind::Live { live } }
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
            KindProjection::Passed { body } => {
                body.poll_frame(context).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
            }
            KindProjection::Observed { mut body, ear } => {
                let frame = ready!(body.as_mut().poll_frame(context));
                let frame = frame.map(|frame| frame.map_err(Into::into));
                ear.hear(frame.as_ref(), body.is_end_stream());
                Poll::Ready(frame)
            }
            KindProjection::Whole { whole } => Poll::Ready(whole.next().map(Ok)),
            KindProjection::Live { live } => live.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Passed { body } | Kind::Observed { body, .. } => body.is_end_stream(),
            Kind::Whole { whole } => whole.is_empty(),
            Kind::Live { live } => live.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Passed { body } | Kind::Observed { body, .. } => body.size_hint(),
            Kind::Whole { whole } => whole.size_hint(),
            Kind::Live { live } => live.size_hint(),
        }
    }
}

impl<B> fmt::Debug for Body<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.kind {
            Kind::Passed { .. } => "Body(passed)",
            Kind::Observed { .. } => "Body(observed)",
            Kind::Whole { .. } => "Body(whole)",
            Kind::Live { .. } => "Body(live)",
        })
    }
}

/// A body in one piece.
#[derive(Clone, Debug, Default)]
pub(crate) struct Whole {
    data: Bytes,
    trailers: Option<Box<HeaderMap>>,
}

impl Whole {
    pub(crate) fn new(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self { data, trailers: trailers.map(Box::new) }
    }

    pub(crate) const fn data(&self) -> &Bytes {
        &self.data
    }

    pub(crate) fn trailers_mut(&mut self) -> Option<&mut HeaderMap> {
        self.trailers.as_deref_mut()
    }

    pub(crate) fn trailers(&self) -> Option<&HeaderMap> {
        self.trailers.as_deref()
    }

    fn next(&mut self) -> Option<Frame<Bytes>> {
        if self.data.is_empty() {
            return self.trailers.take().map(|trailers| Frame::trailers(*trailers));
        }
        Some(Frame::data(std::mem::take(&mut self.data)))
    }

    const fn is_empty(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none()
    }

    /// An exact size becomes a `Content-Length`, after which HTTP/1.1 has no place for trailers.
    fn size_hint(&self) -> SizeHint {
        let length = length(&self.data);
        if self.trailers.is_none() {
            return SizeHint::with_exact(length);
        }
        let mut hint = SizeHint::new();
        hint.set_lower(length);
        hint
    }
}

fn length(data: &Bytes) -> u64 {
    u64::try_from(data.len()).unwrap_or(u64::MAX)
}

/// What comes through the channel from the execution to the body of its answer.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Goes out at once.
    Data(Bytes),
    /// The handler's body broke.
    Broken(BoxError),
}

/// The pieces to come.
#[derive(Debug)]
pub(crate) struct Pieces {
    pub(crate) ahead: mpsc::Receiver<Piece>,
    /// What follows them, and goes out when the operation is recorded.
    pub(crate) last: oneshot::Receiver<Whole>,
    /// How many bytes are in all of them, where the handler's body knows: it is what becomes of a
    /// `Content-Length`.
    pub(crate) bytes: Option<u64>,
}

/// A body that is written while it is sent.
#[derive(Debug)]
struct Live {
    pieces: Pieces,
    pending: Option<Pending>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Flowing,
    /// The last piece is here, and is not recorded yet.
    Held(Whole),
    Recorded(Whole),
    Broken,
}

impl Live {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            match &mut self.stage {
                Stage::Flowing => match ready!(self.pieces.ahead.poll_recv(context)) {
                    Some(Piece::Data(data)) => {
                        let length = length(&data);
                        self.pieces.bytes = self.pieces.bytes.map(|all| all.saturating_sub(length));
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                    Some(Piece::Broken(error)) => return self.broken(error),
                    None => match ready!(Pin::new(&mut self.pieces.last).poll(context)) {
                        Ok(whole) => self.stage = Stage::Held(whole),
                        Err(_) => return self.broken(Incomplete::BrokeOff.into()),
                    },
                },
                Stage::Held(whole) => {
                    let reply = match &mut self.pending {
                        Some(pending) => Some(ready!(Pin::new(pending).poll(context))),
                        None => None,
                    };
                    if !matches!(reply, None | Some(Reply::Ran(_))) {
                        return self.broken(Incomplete::NotRecorded.into());
                    }
                    self.stage = Stage::Recorded(std::mem::take(whole));
                }
                Stage::Recorded(whole) => return Poll::Ready(whole.next().map(Ok)),
                Stage::Broken => return Poll::Ready(None),
            }
        }
    }

    fn broken(&mut self, error: BoxError) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.stage = Stage::Broken;
        Poll::Ready(Some(Err(error)))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.stage {
            Stage::Flowing => self.pieces.bytes.map(SizeHint::with_exact).unwrap_or_default(),
            Stage::Held(whole) | Stage::Recorded(whole) => whole.size_hint(),
            Stage::Broken => SizeHint::with_exact(0),
        }
    }

    const fn is_end(&self) -> bool {
        match &self.stage {
            Stage::Recorded(whole) => whole.is_empty(),
            Stage::Broken => true,
            Stage::Flowing | Stage::Held(_) => false,
        }
    }
}

/// Why a live body ends before its end.
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
    use http_body::Body as _;
    use http_body_util::{BodyExt, Full};

    use super::*;
    use crate::pump::{READ_ON_DEFAULT, Tap, pipe};

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
        let mut body = Body::<Full<Bytes>>::whole(Whole::new(data.clone(), Some(trailers())));
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
        let body = Body::<Full<Bytes>>::whole(Whole::default());
        assert!(body.is_end_stream());
        assert_eq!(body.size_hint().exact(), Some(0));
    }

    fn live(bytes: Option<u64>) -> (Tap, Body<Full<Bytes>>) {
        let (tap, pieces) = pipe(bytes, READ_ON_DEFAULT);
        (tap, Body::live(pieces, None))
    }

    fn last(text: &'static str) -> Whole {
        Whole::new(Bytes::from_static(text.as_bytes()), Some(trailers()))
    }

    #[tokio::test]
    async fn a_live_body_counts_down_what_is_left_of_it() {
        let (mut tap, mut body) = live(Some(5));
        assert_eq!(body.size_hint().exact(), Some(5));
        tap.send(Piece::Data(Bytes::from_static(b"abc"))).await;
        tap.finish(last("de"));
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
        let (tap, body) = live(None);
        assert_eq!(body.size_hint().exact(), None);
        tap.finish(last(""));
        assert_eq!(body.collect().await.unwrap().trailers(), Some(&trailers()));
    }

    #[tokio::test]
    async fn a_live_body_whose_writer_is_gone_ends_with_an_error() {
        let (tap, mut body) = live(None);
        drop(tap);
        let error = body.frame().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("broke off"));
        assert!(body.is_end_stream());
        assert!(body.frame().await.is_none());
    }
}
