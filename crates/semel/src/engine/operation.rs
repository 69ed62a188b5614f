//! The operation of a request while the engine runs it, and the way back to that request.

use std::{
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use semel_core::{ExecutionResult, Reply};
use tokio::sync::oneshot;

use super::pending::{DriverMessage, RemoteWait};
use crate::{Lease, retained_reply::RetainedReply};

/// The rest of an operation that has handed out its value early.
pub type RestOfExecution = Pin<Box<dyn Future<Output = ExecutionResult> + Send>>;

/// What the future of an operation returns: the result for the record, and a value for the request
/// that began it. The value is not recorded, and no other request gets it.
pub enum ExecutionOutput<T> {
    /// The operation has ended. The request gets the value once the result is recorded.
    Ended(ExecutionResult, Option<T>),
    /// The request gets the value now, and the operation runs until this future ends. If the
    /// request is gone, the value is dropped and the operation runs on.
    Early(T, RestOfExecution),
}

impl From<ExecutionResult> for ExecutionOutput<()> {
    fn from(result: ExecutionResult) -> Self {
        Self::Ended(result, None)
    }
}

impl<T> fmt::Debug for ExecutionOutput<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(result, _) => f.debug_tuple("Ended").field(result).finish(),
            Self::Early(..) => f.write_str("Early"),
        }
    }
}

/// An operation as its driver sees it. Dropped without [`start`](Self::start), it is never called.
pub(crate) trait DrivenOperation: Send {
    /// Calls it.
    fn start(self: Pin<&mut Self>, lease: Lease);

    /// Runs it to its end; `None` if it panicked. The panic hook has reported that.
    fn poll_end(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ExecutionResult>>;

    /// Sends the reply and the value to the request, unless it is gone.
    fn reply(self: Pin<&mut Self>, reply: RetainedReply);

    /// Another process runs the operation: the request waits for that one.
    fn wait_remotely(self: Pin<&mut Self>, wait: Box<RemoteWait>);
}

pin_project! {
    /// An operation with a value of type `T`.
    pub(crate) struct ClientOperation<T, E, F> {
        #[pin]
        stage: OperationStage<E, F>,
        value: Option<T>,
        client: Option<ReplyChannel<T>>,
    }
}

pin_project! {
    // In one place: the future takes the memory of the closure.
    #[project = StageProjection]
    enum OperationStage<E, F> {
        Ready { execute: Option<E> },
        Running { #[pin] future: F },
        HandedOut { rest: RestOfExecution },
        Over,
    }
}

enum ReplyChannel<T> {
    Waiting(oneshot::Sender<DriverMessage<T>>),
    /// The request has the value already.
    HandedOut(oneshot::Sender<Reply>),
}

impl<T, E, F> ClientOperation<T, E, F> {
    pub(crate) const fn new(execute: E, reply_tx: oneshot::Sender<DriverMessage<T>>) -> Self {
        Self {
            stage: OperationStage::Ready { execute: Some(execute) },
            value: None,
            client: Some(ReplyChannel::Waiting(reply_tx)),
        }
    }
}

impl<T, E, F> DrivenOperation for ClientOperation<T, E, F>
where
    T: Send,
    E: FnOnce(Lease) -> F + Send,
    F: Future<Output = ExecutionOutput<T>> + Send,
{
    fn start(self: Pin<&mut Self>, lease: Lease) {
        let mut stage = self.project().stage;
        let StageProjection::Ready { execute } = stage.as_mut().project() else { return };
        let Some(execute) = execute.take() else { return };
        match catch_unwind(AssertUnwindSafe(|| execute(lease))) {
            Ok(future) => stage.set(OperationStage::Running { future }),
            Err(_) => stage.set(OperationStage::Over),
        }
    }

    fn poll_end(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ExecutionResult>> {
        let mut this = self.project();
        loop {
            let poll = || match this.stage.as_mut().project() {
                StageProjection::Running { future } => future.poll(context).map(Some),
                StageProjection::HandedOut { rest } => {
                    rest.as_mut().poll(context).map(|end| Some(ExecutionOutput::Ended(end, None)))
                }
                StageProjection::Ready { .. } | StageProjection::Over => Poll::Ready(None),
            };
            let output = catch_unwind(AssertUnwindSafe(poll)).unwrap_or(Poll::Ready(None));
            let result = match ready!(output) {
                Some(ExecutionOutput::Early(value, rest)) => {
                    this.stage.set(OperationStage::HandedOut { rest });
                    *this.client = this.client.take().and_then(|client| client.hand_out(value));
                    continue;
                }
                Some(ExecutionOutput::Ended(result, value)) => {
                    *this.value = value;
                    Some(result)
                }
                None => None,
            };
            // After a panic the future is never polled again.
            this.stage.set(OperationStage::Over);
            return Poll::Ready(result);
        }
    }

    fn reply(self: Pin<&mut Self>, reply: RetainedReply) {
        let this = self.project();
        match this.client.take() {
            Some(ReplyChannel::Waiting(client)) => {
                let _ = client.send(DriverMessage::Reply(reply, this.value.take()));
            }
            Some(ReplyChannel::HandedOut(client)) => {
                let _ = client.send(reply.reply);
            }
            None => {}
        }
    }

    fn wait_remotely(self: Pin<&mut Self>, wait: Box<RemoteWait>) {
        if let Some(ReplyChannel::Waiting(client)) = self.project().client.take() {
            let _ = client.send(DriverMessage::WaitRemotely(wait));
        }
    }
}

impl<T> ReplyChannel<T> {
    /// Hands out the value; `None` if the request is gone.
    fn hand_out(self, value: T) -> Option<Self> {
        let Self::Waiting(client) = self else { return Some(self) };
        let (reply_tx, recorded) = oneshot::channel();
        let sent = client.send(DriverMessage::Early(value, recorded));
        sent.is_ok().then_some(Self::HandedOut(reply_tx))
    }
}
