//! A route that only observes: upstream and client get what they get where nothing is guarded.

use std::sync::{Arc, Mutex};

use http::{Request, Response};
use http_body_util::BodyExt as _;

use crate::{
    client::{Client, guarded},
    common::{Content, Pen, Setup, TestResponse, Upstream, content, text, written},
    soon,
};

/// Both ways to an upstream: the first passes unguarded, the second is observed.
fn ways(upstream: &Upstream, http2: bool) -> [Setup; 2] {
    let setup = || match http2 {
        false => Setup::at(upstream.address()),
        true => Setup::at_http2(upstream.address()),
    };
    let elsewhere = "[[route]]\nmatch = \"POST /elsewhere\"\nscope = \"elsewhere\"";
    [setup().tables(elsewhere), setup().defaults("mode = \"observe\"\nkey = { required = true }")]
}

/// An upstream that remembers each request whole, and answers with headers of every kind.
async fn scribe() -> (Upstream, Arc<Mutex<Vec<String>>>) {
    let seen = Arc::<Mutex<Vec<String>>>::default();
    let upstream = Upstream::serving({
        let seen = Arc::clone(&seen);
        move |request| {
            let seen = Arc::clone(&seen);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap();
                let head = format!("{} {} {:?}", parts.method, parts.uri, parts.headers);
                let whole = (body.trailers().cloned(), body.to_bytes());
                let number = whole.1.len();
                seen.lock().unwrap().push(format!("{head} {whole:?}"));
                Response::builder()
                    .status(202)
                    .header("date", "Mon, 16 Nov 2026 02:43:10 GMT")
                    .header("set-cookie", "a=1")
                    .header("set-cookie", "b=2")
                    .header("idempotency-outcome", "retry")
                    .header("x-request-id", "7")
                    .body(text(format!("{number} bytes")))
                    .unwrap()
            }
        }
    })
    .await;
    (upstream, seen)
}

fn requests() -> Vec<Request<Content>> {
    let posted = |body: Content| {
        Request::post("/charges?a=b")
            .header("idempotency-key", "k")
            .header("idempotency-fence", "7")
            .header("accept-encoding", "gzip, br")
            .header("content-type", "application/json")
            .body(body)
            .unwrap()
    };
    let chunks = || {
        let (pen, body) = written();
        pen.write("{\"a\":");
        pen.write("1}");
        drop(pen);
        body
    };
    let mut keyless = posted(text("{}"));
    keyless.headers_mut().remove("idempotency-key");
    let mut malformed = posted(text("{}"));
    malformed.headers_mut().append("idempotency-key", "again".parse().unwrap());
    vec![
        posted(text("{\"a\":1}")),
        posted(text("{\"a\":1}")),
        posted(text("{\"a\":2}")),
        posted(chunks()),
        posted(text("not JSON")),
        posted(text("")),
        posted(text(vec![b' '; 3 << 20])),
        keyless,
        malformed,
    ]
}

#[tokio::test]
async fn requests_and_answers_are_the_same_byte_for_byte() {
    let (upstream, seen) = scribe().await;
    for (to_us, to_upstream) in [(false, false), (true, false), (false, true)] {
        let mut runs = Vec::new();
        for setup in ways(&upstream, to_upstream) {
            let gateway = setup.start().await;
            let mut client = Client::connect(gateway.address(), to_us).await;
            let mut answers = Vec::new();
            for request in requests() {
                let TestResponse { status, headers, body, trailers, .. } =
                    client.ask(request).await;
                answers.push(format!("{status} {headers:?} {body:?} {trailers:?}"));
            }
            runs.push((seen.lock().unwrap().drain(..).collect::<Vec<_>>(), answers));
        }
        assert_eq!(runs[0].0.len(), requests().len());
        assert_eq!(runs[0], runs[1]);
    }
}

#[tokio::test]
async fn events_and_uploads_pass_while_they_are_written() {
    let current = Arc::<Mutex<Option<Pen>>>::default();
    let upstream = Upstream::serving({
        let current = Arc::clone(&current);
        move |request| {
            let (pen, body) = written();
            // What comes in goes out, piece by piece.
            *current.lock().unwrap() = Some(pen);
            let current = Arc::clone(&current);
            tokio::spawn(async move {
                let mut request = request.into_body();
                while let Some(frame) = request.frame().await {
                    let data = frame.unwrap().into_data().unwrap();
                    current.lock().unwrap().as_ref().unwrap().write(data);
                }
                current.lock().unwrap().take();
            });
            let response = Response::builder().header("content-type", "text/event-stream");
            async { response.body(body).unwrap() }
        }
    })
    .await;
    for setup in ways(&upstream, false) {
        let gateway = setup.start().await;
        let mut client = Client::http2(gateway.address()).await;
        let (pen, body) = written();
        pen.write("data: 0\n\n");
        let mut response = client.send(guarded("/chats", "k", content(body))).await;
        for number in 0..5 {
            let frame = soon(response.frame()).await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), format!("data: {number}\n\n"));
            if number < 4 {
                pen.write(format!("data: {}\n\n", number + 1));
            }
        }
        drop(pen);
        assert!(TestResponse::read(response).await.body.is_empty());
    }
}
