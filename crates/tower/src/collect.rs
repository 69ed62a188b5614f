//! Reads a body into memory, up to a limit.

use std::{pin::Pin, time::Duration};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Body;
use http_body_util::BodyExt;
use tokio::task::coop::consume_budget;

use crate::{buffered_body::BufferedBody, memory::Reservation};

/// The capacity of a segment. The first is smaller, the last is not filled.
const SEGMENT_BYTES_MIN: usize = 4 << 10;
const SEGMENT_BYTES_MAX: usize = 64 << 10;

/// The part of a body that was read so far. A body of one frame is not copied. Any other is copied
/// into segments, because a frame may be a small part of a large buffer; their capacity is never
/// much larger than their content.
#[derive(Debug, Default)]
pub(crate) struct BodyCollector {
    first: Bytes,
    segments: Vec<BytesMut>,
    length: usize,
    trailers: Option<HeaderMap>,
    /// The memory reservation of the bytes, if they are counted.
    memory: Option<Reservation>,
}

/// How reading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CollectResult {
    /// The body was read to its end.
    Complete,
    /// The body exceeds the limit; there may be more.
    TooLarge,
    /// The memory budget is exhausted; there may be more.
    OutOfMemory,
}

impl BodyCollector {
    /// A collector that counts its bytes against a reservation.
    pub(crate) fn with_reservation(memory: Option<Reservation>) -> Self {
        Self { memory, ..Self::default() }
    }

    /// Reads until the end, or until the body exceeds `max` or the memory budget. Only bytes that
    /// have arrived take memory: a declared length costs its sender nothing.
    pub(crate) async fn fill<B>(
        &mut self,
        mut body: Pin<&mut B>,
        max: usize,
    ) -> Result<CollectResult, B::Error>
    where
        B: Body<Data = Bytes>,
    {
        loop {
            // Empty frames never reach the limit, and must not monopolise the thread.
            consume_budget().await;
            let Some(frame) = body.as_mut().frame().await else {
                return Ok(CollectResult::Complete);
            };
            let in_memory = match frame?.into_data() {
                Ok(data) => self.add(data),
                Err(frame) => {
                    self.trailers = frame.into_trailers().ok();
                    true
                }
            };
            if self.length > max {
                return Ok(CollectResult::TooLarge);
            }
            if !in_memory {
                return Ok(CollectResult::OutOfMemory);
            }
        }
    }

    /// Adds data in any case, and returns whether the memory budget allows it.
    pub(crate) fn add(&mut self, data: Bytes) -> bool {
        if self.length == 0 {
            self.length = data.len();
            self.first = data;
        } else {
            let first = std::mem::take(&mut self.first);
            self.append(&first);
            self.append(&data);
            self.length = self.length.saturating_add(data.len());
        }
        self.reserve(self.length)
    }

    /// Appends a copy of the data.
    fn append(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            let full = |segment: &BytesMut| segment.len() == segment.capacity();
            if self.segments.last().is_none_or(full) {
                let room = self.length.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
                self.segments.push(BytesMut::with_capacity(room));
            }
            let Some(segment) = self.segments.last_mut() else { return };
            let room = segment.capacity().saturating_sub(segment.len());
            let (fits, rest) = data.split_at(room.min(data.len()));
            segment.extend_from_slice(fits);
            data = rest;
        }
    }

    /// Whether there is memory for so many bytes.
    pub(crate) fn reserve(&mut self, bytes: usize) -> bool {
        self.memory.as_mut().is_none_or(|memory| memory.covers(bytes))
    }

    /// The size of an answer of unknown length that memory is found for, `max` if possible.
    pub(crate) fn answer_bytes_max(&self, max: usize) -> usize {
        self.memory.as_ref().map_or(max, |memory| max.min(memory.answer_bytes_max()))
    }

    /// Finds memory for an answer of so many bytes; false if there is none within `wait_max`.
    pub(crate) async fn reserve_answer(&mut self, bytes: usize, wait_max: Duration) -> bool {
        match &mut self.memory {
            Some(memory) => memory.grow_for_answer(bytes, wait_max).await,
            None => true,
        }
    }

    /// Finds memory for what has come by evicting others, so that reading can go on; false if there
    /// is none.
    pub(crate) async fn make_room(&mut self, evict: &(dyn Fn() -> bool + Sync)) -> bool {
        match &mut self.memory {
            Some(memory) => memory.grow_by_eviction(self.length, evict).await,
            None => true,
        }
    }

    pub(crate) const fn length(&self) -> usize {
        self.length
    }

    /// The collected body and its reservation.
    pub(crate) fn finish(mut self) -> (BufferedBody, Option<Reservation>) {
        let data = match self.segments.len() {
            0 => self.first,
            1 => self.segments.pop().unwrap_or_default().freeze(),
            _ => joined(self.segments, self.length),
        };
        (BufferedBody::new(data, self.trailers), self.memory)
    }

    /// The collected body, whose bytes keep their reservation while they are in use.
    pub(crate) fn finish_held(self) -> BufferedBody {
        let (mut buffered, memory) = self.finish();
        buffered.hold(memory);
        buffered
    }
}

/// Concatenates all segments. Each is freed as soon as it is copied.
fn joined(segments: Vec<BytesMut>, length: usize) -> Bytes {
    let mut all = BytesMut::with_capacity(length);
    for segment in segments {
        all.extend_from_slice(&segment);
    }
    all.freeze()
}

#[cfg(test)]
mod tests {
    use std::{
        future::{Future, poll_fn},
        pin::pin,
        task::{Context, Poll},
    };

    use http_body::{Frame, SizeHint};

    use super::*;
    use crate::{
        BoxError, MemoryBudget,
        memory::MemoryUse,
        testing::{Frames, frames},
    };

    async fn fill(chunks: &[&'static str], max: usize) -> (CollectResult, Bytes) {
        let mut collector = BodyCollector::default();
        let result = collector.fill(pin!(frames(chunks)), max).await.unwrap();
        (result, collector.finish().0.data().clone())
    }

    #[tokio::test]
    async fn frames_are_joined_up_to_the_limit() {
        assert_eq!(fill(&[], 5).await, (CollectResult::Complete, Bytes::new()));
        assert_eq!(
            fill(&["ab", "", "c", "de"], 5).await,
            (CollectResult::Complete, "abcde".into())
        );
        assert_eq!(
            fill(&["ab", "cdef", "never"], 5).await,
            (CollectResult::TooLarge, "abcdef".into())
        );
        assert_eq!(fill(&["abcdef", "never"], 5).await, (CollectResult::TooLarge, "abcdef".into()));
    }

    #[tokio::test]
    async fn one_frame_is_not_copied() {
        let data = Bytes::from_static(b"abc");
        let body = http_body_util::Full::new(data.clone());
        let mut collector = BodyCollector::default();
        collector.fill(pin!(body), 3).await.unwrap();
        assert_eq!(collector.finish().0.data().as_ptr(), data.as_ptr());
    }

    #[tokio::test]
    async fn trailers_are_kept() {
        let mut trailers = HeaderMap::new();
        trailers.insert("a", "b".parse().unwrap());
        let frames = [Frame::data(Bytes::from_static(b"x")), Frame::trailers(trailers.clone())];
        let mut collector = BodyCollector::default();
        collector.fill(pin!(Frames::new(frames.map(Ok))), 3).await.unwrap();
        assert_eq!(collector.finish().0.trailers(), Some(&trailers));
    }

    fn chunks(count: usize, length: usize) -> Vec<Bytes> {
        let chunk = |number: usize| vec![u8::try_from(number % 251).unwrap(); length].into();
        (0..count).map(chunk).collect()
    }

    #[test]
    fn a_body_of_many_frames_takes_no_more_room_than_it_has_bytes() {
        for (count, length) in [(1024, 1024), (64, 16 << 10), (3, 5)] {
            let chunks = chunks(count, length);
            let mut collector = BodyCollector::default();
            let mut most = 0;
            for chunk in &chunks {
                collector.add(chunk.clone());
                let room: usize = collector.segments.iter().map(BytesMut::capacity).sum();
                most = most.max(room.saturating_sub(collector.length()));
            }
            assert!(most <= SEGMENT_BYTES_MAX, "{most} bytes of room for nothing");
            let (buffered, _) = collector.finish();
            assert_eq!(*buffered.data(), chunks.concat(), "{count} chunks of {length} bytes");
        }
    }

    #[tokio::test]
    async fn collected_bytes_are_counted_until_they_are_dropped() {
        let budget = MemoryBudget::new(4000);
        let peer = budget.peer([10, 0, 0, 1].into());
        let read = async |body: Vec<Bytes>| {
            let mut collector =
                BodyCollector::with_reservation(Some(peer.reservation(MemoryUse::Requests)));
            let frames = body.into_iter().map(Frame::data).map(Ok);
            let result = collector.fill(pin!(Frames::new(frames)), 1 << 20).await.unwrap();
            (result, collector.finish_held())
        };
        let (result, buffered) = read(chunks(3, 300)).await;
        assert_eq!(
            (result, budget.used(), buffered.data().len()),
            (CollectResult::Complete, 900, 900)
        );
        let (result, cut) = read(chunks(3, 100)).await;
        assert_eq!((result, cut.data().len()), (CollectResult::OutOfMemory, 200));
        let data = buffered.data().clone();
        drop((buffered, cut));
        assert_eq!(budget.used(), 900, "a clone is in use");
        drop(data);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn a_length_that_is_announced_takes_no_memory() {
        let budget = MemoryBudget::new(4000);
        let memory = budget.peer([10, 0, 0, 1].into()).reservation(MemoryUse::Requests);
        let mut collector = BodyCollector::with_reservation(Some(memory));
        {
            let body = pin!(Silent);
            let mut filling = pin!(collector.fill(body, 1 << 20));
            let waits = poll_fn(|context| Poll::Ready(filling.as_mut().poll(context).is_pending()));
            assert!(waits.await);
            assert_eq!(budget.used(), 0);
        }
        assert_eq!(collector.length(), 0);
    }

    /// Announces more than there is memory for, and sends nothing.
    struct Silent;

    impl Body for Silent {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            Poll::Pending
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(1001)
        }
    }
}
