//! One connection of a client, from its first byte to its last.

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{
    body::Arriving,
    http1::{self, Io},
    listen::Accepted,
    peer::Peer,
    site::Answer,
    stop::{Ear, Phase, Stop},
    wire::Outlet,
    worker::Worker,
};
use crate::config::Limits;

/// How many requests one HTTP/2 connection may have under way.
const STREAMS_MAX: u32 = 200;

/// How often an HTTP/2 client is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(20);

/// After this long without a byte, the kernel asks whether the client is still there.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Serves a connection until it ends. Whatever is wrong with it concerns nobody else.
pub(crate) async fn serve(accepted: Accepted, worker: Arc<Worker>) {
    let Accepted { stream, address, tls, place } = accepted;
    let Ok(stream) = TcpStream::from_std(stream) else { return };
    // Neither is vital: without them an answer is slower, or a dead client is noticed later.
    let _ = stream.set_nodelay(true);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
    let place = Arc::new(place);
    let peer = Arc::new(Peer::new(address, tls.is_some(), worker.stop.clone(), &place));
    let patience = worker.limits.answer_timeout;
    let Some(tls) = tls else {
        if let Some(http2) = in_time(is_http2(&stream), &worker).await {
            speak(Box::new(Outlet::new(stream, patience)), http2, &peer, &worker).await;
        }
        return;
    };
    if let Some(stream) = in_time(tls.accept(Outlet::new(stream, patience)), &worker).await {
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        speak(Box::new(stream), http2, &peer, &worker).await;
    }
}

/// What a connection begins with, unless it takes too long, fails, or the end comes first.
async fn in_time<T>(first: impl Future<Output = io::Result<T>>, worker: &Worker) -> Option<T> {
    let mut stop = worker.stop.clone();
    tokio::select! {
        biased;
        first = timeout(worker.limits.header_timeout, first) => first.ok()?.ok(),
        () = stop.reached(Phase::Closing) => None,
    }
}

/// Whether a client begins with the preface of HTTP/2. One that sends it in pieces is waited for.
async fn is_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; PREFACE.len()];
    loop {
        let count = stream.peek(&mut first).await?;
        let seen = first.get(..count).unwrap_or_default();
        if count == PREFACE.len() || count == 0 || !PREFACE.starts_with(seen) {
            return Ok(seen == PREFACE);
        }
        sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) async fn speak(io: Box<dyn Io>, http2: bool, peer: &Arc<Peer>, worker: &Arc<Worker>) {
    if !http2 {
        return http1::serve(io, peer, worker).await;
    }
    let service = service_fn({
        let (peer, worker) = (Arc::clone(peer), Arc::clone(worker));
        move |request: Request<Incoming>| answer(&worker, &peer, request)
    });
    let connection = http2_builder(&worker.limits).serve_connection(TokioIo::new(io), service);
    until_told(connection, http2::Connection::graceful_shutdown, &worker.stop).await;
}

/// Drives a connection; told to stop, it finishes what it has begun.
async fn until_told<C: Future>(connection: C, finish: impl FnOnce(Pin<&mut C>), stop: &Stop) {
    let mut connection = pin!(connection);
    let mut ear = Ear::new(stop, Phase::Closing);
    let is_told = poll_fn(|context| {
        if connection.as_mut().poll(context).is_ready() {
            return Poll::Ready(false);
        }
        ear.poll(context).map(|()| true)
    });
    if is_told.await {
        finish(connection.as_mut());
        connection.await;
    }
}

fn answer(
    worker: &Worker,
    peer: &Arc<Peer>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Answer>, Infallible>> + Send + use<> {
    let answer = worker.site.load().answer(request.map(Arriving::Http2), peer);
    async move { Ok(answer.await) }
}

fn http2_builder(limits: &Limits) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .adaptive_window(true)
        .keep_alive_interval(PING_EVERY)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX));
    builder
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use tokio::task::{
        coop::{consume_budget, has_budget_remaining},
        yield_now,
    };

    use super::{super::stop::Stopper, *};

    /// A connection that leaves nothing of what its task may do at a time.
    struct Greedy {
        is_told: bool,
    }

    impl Future for Greedy {
        type Output = ();

        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
            while has_budget_remaining() {
                let _ = pin!(consume_budget()).poll(context);
            }
            if self.is_told { Poll::Ready(()) } else { Poll::Pending }
        }
    }

    #[tokio::test]
    async fn a_connection_that_is_busy_is_told_of_the_end() {
        for phases in [&[Phase::Closing][..], &[Phase::Draining, Phase::Closing]] {
            let (stopper, stop) = Stopper::new();
            let greedy = Greedy { is_told: false };
            let finish = |greedy: Pin<&mut Greedy>| greedy.get_mut().is_told = true;
            let serving = tokio::spawn(async move { until_told(greedy, finish, &stop).await });
            for phase in phases {
                for _ in 0..10 {
                    yield_now().await;
                }
                stopper.enter(*phase);
            }
            timeout(Duration::from_secs(30), serving).await.expect("it was not told").unwrap();
        }
    }
}
