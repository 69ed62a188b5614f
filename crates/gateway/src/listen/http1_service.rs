//! The requests of an HTTP/1.1 connection: each goes to the route table of its worker.

use std::{future::Future, sync::Arc};

use http::{Request, Response, request::Parts};
use http_body_util::Either;
use semel_http1::{BadRequest, ConnectionLimits, Http1Service, IncomingBody};

use crate::body::ClientBody;
use crate::connections::ActiveRequest;
use crate::forward::response_body::GatewayBody;
use crate::listen::worker_state::WorkerState;
use crate::peer::ClientPeer;
use crate::route::bad_request;

/// The requests of one client connection.
#[derive(Debug)]
pub(crate) struct ClientRequests<'a> {
    peer: &'a Arc<ClientPeer>,
    worker: &'a Arc<WorkerState>,
}

impl<'a> ClientRequests<'a> {
    pub(crate) const fn new(peer: &'a Arc<ClientPeer>, worker: &'a Arc<WorkerState>) -> Self {
        Self { peer, worker }
    }
}

impl Http1Service for ClientRequests<'_> {
    type Body = GatewayBody;
    type ActiveRequest = ActiveRequest;

    fn limits(&self) -> ConnectionLimits {
        let limits = &self.worker.limits;
        ConnectionLimits {
            header_bytes: limits.header_bytes,
            headers: limits.headers,
            header_timeout: limits.header_timeout,
            body_timeout: limits.body_timeout,
        }
    }

    fn on_input(&self) {
        self.peer.connection().touch();
    }

    fn begin(&self) -> Option<ActiveRequest> {
        self.peer.connection().begin()
    }

    fn respond(
        &self,
        request: Request<IncomingBody>,
    ) -> impl Future<Output = Response<GatewayBody>> + Send {
        self.worker.route_table.load().respond(request.map(ClientBody::Http1), self.peer)
    }

    fn refuse_to_begin(&self, head: &Parts) -> Option<Response<GatewayBody>> {
        let refuse = || bad_request::over_share(head.version, &head.headers);
        (!self.peer.connection().is_evicted()).then(refuse)
    }

    fn refuse(&self, (status, detail): BadRequest) -> Response<GatewayBody> {
        self.worker.route_table.load().count_malformed();
        bad_request::response(status, detail).map(Either::Right)
    }

    fn date(&self) -> impl AsRef<[u8]> + Send {
        self.worker.date.now()
    }

    fn is_draining(&self) -> bool {
        self.worker.shutdown.is_draining()
    }
}
