//! What a call returns when its deadline cuts the last attempt.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    thread,
    time::Duration,
};

use bytes::Bytes;
use semel_client::RetryClient;

const RUNNING: &str = "HTTP/1.1 409 Conflict\r\nRetry-After: 0\r\nContent-Length: 2\r\n\r\n{}";

#[tokio::test]
async fn the_deadline_leaves_the_answer_that_the_operation_runs() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        let mut client = listener.accept().unwrap().0;
        let mut request = [0; 4096];
        assert!(client.read(&mut request).unwrap() > 0);
        client.write_all(RUNNING.as_bytes()).unwrap();
        // The second attempt gets no answer.
        while client.read(&mut request).unwrap_or_default() > 0 {}
    });
    let client = RetryClient::new().unwrap().deadline(Some(Duration::from_secs(2)));
    let request = http::Request::post(url).body(Bytes::new()).unwrap();
    assert_eq!(client.send(request).await.unwrap().status(), 409);
}
