//! One batch of messages: delivers its lanes concurrently, and decides what failed.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::task::JoinSet;

use crate::{Delivery, OutboxMessage, Sink, store::AsideMessage};

/// How often a receiver may be unavailable to the only lane of a batch before the lane moves aside.
/// A message that crashes its receiver looks like an outage.
const OUTAGE_ATTEMPTS_MAX: u32 = 5;

/// The messages of one lane that are not delivered, in order.
#[derive(Debug)]
pub(crate) struct LaneQueue(VecDeque<OutboxMessage>);

/// What became of a lane.
#[derive(Debug)]
struct LaneReport {
    rest: LaneQueue,
    delivered: u64,
    /// The result that ended the lane early.
    failure: Option<Delivery>,
}

/// A batch that is being delivered.
#[derive(Debug, Default)]
pub(crate) struct DeliveryBatch {
    lanes: VecDeque<LaneQueue>,
    /// What moves aside when the batch is saved.
    pub(crate) aside: Vec<AsideMessage>,
    /// Consecutive attempts at which the receiver was unavailable to every lane.
    outage: u32,
}

/// A message that failed, with the later ones of its lane.
#[derive(Debug)]
pub(crate) struct FailedLane {
    pub(crate) messages: VecDeque<OutboxMessage>,
    pub(crate) reason: String,
    pub(crate) after: Option<Duration>,
    pub(crate) refused: bool,
}

/// What one pass over a batch achieved.
#[derive(Debug, Default)]
pub(crate) struct PassReport {
    pub(crate) delivered: u64,
    pub(crate) failed: Vec<FailedLane>,
    /// The receiver is unavailable: the reason, and the delay that it asked for.
    pub(crate) outage: Option<(String, Option<Duration>)>,
}

impl DeliveryBatch {
    /// Sorts messages into lanes. Those of a lane that is aside follow it.
    pub(crate) fn new(messages: Vec<OutboxMessage>, is_aside: impl Fn(i16, &str) -> bool) -> Self {
        let mut batch = Self::default();
        let mut places = BTreeMap::new();
        for message in messages {
            let lane = message.lane();
            if is_aside(message.bucket, &lane) {
                batch.aside.push(AsideMessage { message, failed: None });
                continue;
            }
            let place = *places.entry(lane).or_insert_with(|| {
                batch.lanes.push_back(LaneQueue(VecDeque::new()));
                batch.lanes.len().saturating_sub(1)
            });
            if let Some(LaneQueue(queue)) = batch.lanes.get_mut(place) {
                queue.push_back(message);
            }
        }
        batch
    }

    /// Whether nothing is left to deliver.
    pub(crate) fn is_done(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Consecutive attempts at which the receiver was unavailable.
    pub(crate) const fn outage(&self) -> u32 {
        self.outage
    }

    /// Delivers what is left. During an outage only one lane is tried, another one each time.
    pub(crate) async fn deliver(&mut self, sink: &Arc<dyn Sink>) -> PassReport {
        let waiting = self.lanes.len();
        let tried = if self.outage == 0 {
            std::mem::take(&mut self.lanes)
        } else {
            self.lanes.pop_front().into_iter().collect()
        };
        let reports = deliver_lanes(tried, sink).await;
        self.judge(reports, waiting)
    }

    fn judge(&mut self, reports: Vec<LaneReport>, waiting: usize) -> PassReport {
        let is_unavailable =
            |report: &LaneReport| matches!(report.failure, Some(Delivery::Unavailable { .. }));
        let reached = reports.iter().any(|report| report.delivered > 0 || !is_unavailable(report));
        self.outage = if reached { 0 } else { self.outage.saturating_add(1) };
        let is_outage = !reached && (waiting > 1 || self.outage < OUTAGE_ATTEMPTS_MAX);
        let mut pass = PassReport::default();
        for LaneReport { rest: LaneQueue(messages), delivered, failure } in reports {
            pass.delivered = pass.delivered.saturating_add(delivered);
            let (reason, after, refused) = match failure {
                None | Some(Delivery::Delivered) => continue,
                Some(Delivery::Unavailable { reason, after }) if is_outage => {
                    self.lanes.push_back(LaneQueue(messages));
                    pass.outage = Some((reason, after));
                    continue;
                }
                Some(
                    Delivery::Unavailable { reason, after } | Delivery::Failed { reason, after },
                ) => (reason, after, false),
                Some(Delivery::Refused { reason }) => (reason, None, true),
            };
            pass.failed.push(FailedLane { messages, reason, after, refused });
        }
        if !is_outage {
            self.outage = 0;
        }
        pass
    }
}

/// Delivers each lane in its order, and several lanes concurrently.
async fn deliver_lanes(lanes: VecDeque<LaneQueue>, sink: &Arc<dyn Sink>) -> Vec<LaneReport> {
    let workers = sink.concurrency().clamp(1, lanes.len().max(1));
    let queue = Arc::new(Mutex::new(lanes));
    let mut tasks = JoinSet::new();
    for _ in 0..workers {
        let (queue, sink) = (Arc::clone(&queue), Arc::clone(sink));
        tasks.spawn(async move {
            let mut reports = Vec::new();
            loop {
                let lane = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                let Some(lane) = lane else { return reports };
                reports.push(deliver_lane(lane, &*sink).await);
            }
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

async fn deliver_lane(LaneQueue(mut queue): LaneQueue, sink: &dyn Sink) -> LaneReport {
    let mut delivered: u64 = 0;
    while let Some(message) = queue.front() {
        match sink.deliver(message).await {
            Delivery::Delivered => {
                queue.pop_front();
                delivered = delivered.saturating_add(1);
            }
            failure @ (Delivery::Refused { .. }
            | Delivery::Failed { .. }
            | Delivery::Unavailable { .. }) => {
                return LaneReport { rest: LaneQueue(queue), delivered, failure: Some(failure) };
            }
        }
    }
    LaneReport { rest: LaneQueue(queue), delivered, failure: None }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use async_trait::async_trait;
    use uuid::Uuid;

    use super::*;

    fn message(number: i64, key: Option<&str>) -> OutboxMessage {
        OutboxMessage {
            number,
            bucket: 0,
            id: Uuid::from_u128(u128::from(number.unsigned_abs())),
            topic: "t".to_owned(),
            key: key.map(str::to_owned),
            payload: Vec::new(),
            age: Duration::ZERO,
        }
    }

    /// Fails messages with the key `bad`, and all messages while it is down.
    #[derive(Default)]
    struct FlakySink {
        down: AtomicBool,
        delivered: Mutex<Vec<i64>>,
    }

    #[async_trait]
    impl Sink for FlakySink {
        async fn deliver(&self, message: &OutboxMessage) -> Delivery {
            let reason = "as the test wants it".to_owned();
            if self.down.load(Ordering::Relaxed) {
                return Delivery::Unavailable { reason, after: None };
            }
            match message.key.as_deref() {
                Some("bad") => Delivery::Failed { reason, after: None },
                Some("crash") => Delivery::Unavailable { reason, after: None },
                _ => {
                    self.delivered.lock().unwrap().push(message.number);
                    Delivery::Delivered
                }
            }
        }
    }

    fn numbers(lane: &FailedLane) -> Vec<i64> {
        lane.messages.iter().map(|message| message.number).collect()
    }

    #[tokio::test]
    async fn a_failed_message_moves_aside_with_the_later_ones_of_its_key() {
        let flaky = Arc::new(FlakySink::default());
        let sink: Arc<dyn Sink> = Arc::<FlakySink>::clone(&flaky);
        let keys = [Some("a"), Some("bad"), Some("a"), Some("bad"), None];
        let messages = (1..).zip(keys).map(|(number, key)| message(number, key)).collect();
        let mut batch = DeliveryBatch::new(messages, |_, _| false);
        let pass = batch.deliver(&sink).await;
        assert_eq!(pass.delivered, 3);
        assert_eq!(numbers(&pass.failed[0]), [2, 4]);
        assert!(batch.is_done());
    }

    #[tokio::test]
    async fn messages_of_a_lane_that_is_aside_follow_it() {
        let messages = vec![message(1, Some("a")), message(2, Some("b"))];
        let batch = DeliveryBatch::new(messages, |_, lane| lane == "ka");
        assert_eq!(batch.aside.len(), 1);
        assert_eq!(batch.lanes.len(), 1);
    }

    #[tokio::test]
    async fn an_outage_moves_nothing_aside_and_is_probed_with_one_lane() {
        let flaky = Arc::new(FlakySink::default());
        let sink: Arc<dyn Sink> = Arc::<FlakySink>::clone(&flaky);
        flaky.down.store(true, Ordering::Relaxed);
        let mut batch =
            DeliveryBatch::new(vec![message(1, Some("a")), message(2, Some("b"))], |_, _| false);
        for attempt in 1..20 {
            let pass = batch.deliver(&sink).await;
            assert!(pass.outage.is_some() && pass.failed.is_empty());
            assert_eq!(batch.outage(), attempt);
        }
        flaky.down.store(false, Ordering::Relaxed);
        assert_eq!(batch.deliver(&sink).await.delivered, 1);
        assert_eq!(batch.deliver(&sink).await.delivered, 1);
        assert!(batch.is_done());
    }

    #[tokio::test]
    async fn a_message_that_crashes_its_receiver_moves_aside_where_others_arrive() {
        let sink: Arc<dyn Sink> = Arc::new(FlakySink::default());
        let messages = vec![message(1, Some("crash")), message(2, Some("b"))];
        let mut batch = DeliveryBatch::new(messages, |_, _| false);
        let pass = batch.deliver(&sink).await;
        assert_eq!((pass.delivered, pass.failed.len()), (1, 1));
        assert!(pass.outage.is_none());
    }

    #[tokio::test]
    async fn a_lonely_message_that_crashes_its_receiver_moves_aside_after_some_attempts() {
        let sink: Arc<dyn Sink> = Arc::new(FlakySink::default());
        let mut batch = DeliveryBatch::new(vec![message(1, Some("crash"))], |_, _| false);
        for _ in 1..OUTAGE_ATTEMPTS_MAX {
            assert!(batch.deliver(&sink).await.outage.is_some());
        }
        assert_eq!(batch.deliver(&sink).await.failed.len(), 1);
        assert!(batch.is_done());
    }
}
