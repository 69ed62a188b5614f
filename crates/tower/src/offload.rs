//! Work on large bodies, away from the threads that serve connections.
//!
//! Decoding and canonicalising one mebibyte takes about ten milliseconds, during which a serving
//! thread would answer no other client. Half of the cores at most do such work, so that a flood of
//! large bodies delays large bodies and nothing else.

use std::{sync::LazyLock, thread};

use http::HeaderMap;
use semel::core::Problem;
use tokio::{sync::Semaphore, task::spawn_blocking};

use crate::{content_coding::ContentCoding, refusal::RequestRefusal};

/// A compressed body is offloaded if it can decode to more than this.
const DECODED_BYTES: usize = 64 * 1024;

/// Any other body is offloaded if it is longer than this: fingerprinting it takes a millisecond.
const PLAIN_BYTES: usize = 256 * 1024;

/// How many threads may do such work at once.
static PERMITS: LazyLock<Semaphore> = LazyLock::new(|| {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    Semaphore::new((cores / 2).max(1))
});

/// Whether the work on a body is too much for a serving thread.
pub(crate) fn needs_offload(headers: &HeaderMap, body: &[u8]) -> bool {
    let coding = ContentCoding::of(headers);
    let is_coded = matches!(coding, ContentCoding::Gzip | ContentCoding::Deflate);
    body.len() > PLAIN_BYTES || (is_coded && coding.decoded_bytes_max(body.len()) > DECODED_BYTES)
}

/// Does the work on another thread.
pub(crate) async fn run<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RequestRefusal> {
    let Ok(permit) = PERMITS.acquire().await else { return Err(stopped()) };
    let done = spawn_blocking(move || {
        // The permit is held until the work has ended, even if its client is gone.
        let _permit = permit;
        work()
    });
    done.await.map_err(|_| stopped())
}

/// The runtime is shutting down.
fn stopped() -> RequestRefusal {
    RequestRefusal::detailed(Problem::TooManyInFlight, "the server is stopping; nothing was done")
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header};

    use super::*;

    #[test]
    fn only_bodies_that_can_be_large_leave_their_thread() {
        let coded = |coding: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding));
            headers
        };
        let body = vec![0; PLAIN_BYTES + 1];
        for (headers, length, costly) in [
            (HeaderMap::new(), PLAIN_BYTES, false),
            (HeaderMap::new(), PLAIN_BYTES + 1, true),
            (coded("br"), PLAIN_BYTES, false),
            (coded("gzip"), 600, false),
            (coded("gzip"), 700, true),
            (coded("deflate"), 700, true),
        ] {
            assert_eq!(needs_offload(&headers, &body[..length]), costly, "{headers:?} {length}");
        }
    }

    #[tokio::test]
    async fn the_thread_that_serves_goes_on_meanwhile() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let serving = thread::current().id();
        let work = run(move || {
            // Ends only after the serving thread has done something else.
            receiver.recv().unwrap();
            thread::current().id()
        });
        let other = async move { sender.send(()).unwrap() };
        let (worked_on, ()) = tokio::join!(work, other);
        assert_ne!(worked_on.unwrap(), serving);
    }
}
