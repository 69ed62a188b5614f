//! HTTP/2 requests with `Content-Length: 0` whose head does not end the stream.
//!
//! A DATA frame that follows makes such a request malformed (RFC 9113, section 8.1.1), and a
//! malformed request must not run. A request without content would be forwarded with its head,
//! before that frame arrives. So the gateway awaits the end of the stream first.

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};

use crate::route::bad_request;

/// Whether a request announces an empty body and its stream has not ended yet.
pub(crate) fn is_unconfirmed(request: &Request<Incoming>) -> bool {
    let mut lengths = request.headers().get_all(header::CONTENT_LENGTH).iter();
    lengths.any(|length| length.as_bytes().iter().all(|digit| *digit == b'0'))
        && !request.body().is_end_stream()
}

/// Whether the body ends without a byte. Trailers are dropped.
pub(crate) async fn ends_empty(body: &mut Incoming) -> bool {
    while let Some(frame) = body.frame().await {
        let is_empty = |data: &Bytes| data.is_empty();
        if !frame.is_ok_and(|frame| frame.data_ref().is_none_or(is_empty)) {
            return false;
        }
    }
    // A stream that was reset has not ended.
    body.is_end_stream()
}

/// The response to a body that is not empty.
pub(crate) fn length_mismatch() -> Response<Full<Bytes>> {
    let detail = "The body length does not match the Content-Length.";
    bad_request::response(StatusCode::BAD_REQUEST, detail)
}
