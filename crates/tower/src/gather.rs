//! Reading a body into memory, up to a limit.

use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Body;
use http_body_util::BodyExt;
use tokio::task::coop::consume_budget;

use crate::body::Whole;

/// What has been read of a body so far. A body of one frame is not copied.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    first: Bytes,
    joined: BytesMut,
    trailers: Option<HeaderMap>,
}

/// How far reading got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// To the end.
    Whole,
    /// Past the limit; there may be more.
    Over,
}

impl Gather {
    /// Reads until the end, or until there is more than `max`.
    pub(crate) async fn fill<B>(
        &mut self,
        mut body: Pin<&mut B>,
        max: usize,
    ) -> Result<Filled, B::Error>
    where
        B: Body<Data = Bytes>,
    {
        loop {
            // Empty frames never reach the limit, and must not keep the thread.
            consume_budget().await;
            let Some(frame) = body.as_mut().frame().await else { return Ok(Filled::Whole) };
            match frame?.into_data() {
                Ok(data) => self.add(data),
                Err(frame) => self.trailers = frame.into_trailers().ok(),
            }
            if self.length() > max {
                return Ok(Filled::Over);
            }
        }
    }

    pub(crate) fn add(&mut self, data: Bytes) {
        if self.length() == 0 {
            self.first = data;
            return;
        }
        if !self.first.is_empty() {
            self.joined.reserve(self.first.len().saturating_add(data.len()));
            self.joined.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.joined.extend_from_slice(&data);
    }

    /// One of the two is empty.
    pub(crate) fn length(&self) -> usize {
        self.first.len().max(self.joined.len())
    }

    pub(crate) fn finish(self) -> Whole {
        let data = if self.joined.is_empty() { self.first } else { self.joined.freeze() };
        Whole::new(data, self.trailers)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use http_body::Frame;

    use super::*;
    use crate::testing::{Frames, frames};

    async fn fill(pieces: &[&'static str], max: usize) -> (Filled, Bytes) {
        let mut gather = Gather::default();
        let filled = gather.fill(pin!(frames(pieces)), max).await.unwrap();
        (filled, gather.finish().data().clone())
    }

    #[tokio::test]
    async fn frames_are_joined_up_to_the_limit() {
        assert_eq!(fill(&[], 5).await, (Filled::Whole, Bytes::new()));
        assert_eq!(fill(&["ab", "", "c", "de"], 5).await, (Filled::Whole, "abcde".into()));
        assert_eq!(fill(&["ab", "cdef", "never"], 5).await, (Filled::Over, "abcdef".into()));
        assert_eq!(fill(&["abcdef", "never"], 5).await, (Filled::Over, "abcdef".into()));
    }

    #[tokio::test]
    async fn one_frame_is_not_copied() {
        let data = Bytes::from_static(b"abc");
        let body = http_body_util::Full::new(data.clone());
        let mut gather = Gather::default();
        gather.fill(pin!(body), 3).await.unwrap();
        assert_eq!(gather.finish().data().as_ptr(), data.as_ptr());
    }

    #[tokio::test]
    async fn trailers_are_kept() {
        let mut trailers = HeaderMap::new();
        trailers.insert("a", "b".parse().unwrap());
        let frames = [Frame::data(Bytes::from_static(b"x")), Frame::trailers(trailers.clone())];
        let mut gather = Gather::default();
        gather.fill(pin!(Frames::new(frames.map(Ok))), 3).await.unwrap();
        assert_eq!(gather.finish().trailers(), Some(&trailers));
    }
}
