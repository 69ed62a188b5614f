//! WebSocket upgrades. After 101 the bytes of both sides are copied until one of them ends.

use std::{
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use data_encoding::BASE64;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version, header, request,
};
use sha1::{Digest as _, Sha1};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf, copy_bidirectional};

use crate::connections::{ConnectionPermit, OpenConnection, Tunnel};
use crate::forward::response_body::UpstreamBody;
use crate::headers;
use crate::peer::ClientPeer;
use crate::shutdown::ShutdownPhase;
use semel_http1::{Io, PendingUpgrade, UpstreamStream};

/// An upgrade that a client requested.
#[derive(Debug)]
pub(crate) struct Upgrade {
    protocol: HeaderValue,
    /// The `Sec-WebSocket-Accept` that proves that the upstream speaks WebSocket.
    accept: String,
    client: PendingUpgrade,
    peer: Arc<ClientPeer>,
    /// The connection keeps its permit while it is a tunnel.
    permit: Arc<ConnectionPermit>,
}

impl Upgrade {
    /// The upgrade that a request asks for, if any. Must be called before the hop-by-hop fields are
    /// removed.
    pub(crate) fn from_request(parts: &mut request::Parts, peer: &Arc<ClientPeer>) -> Option<Self> {
        if parts.version != Version::HTTP_11 {
            return None;
        }
        let protocol = parts.headers.get(header::UPGRADE)?.clone();
        if !headers::is_connection_option(&parts.headers, &header::UPGRADE) {
            return None;
        }
        let has_body = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING];
        if has_body.iter().any(|name| parts.headers.contains_key(name)) {
            // The end of the body would be lost among the bytes of the other protocol.
            return None;
        }
        // An upgrade to HTTP/2 or TLS would carry requests that bypass every route.
        if parts.method != Method::GET || !protocol.as_bytes().eq_ignore_ascii_case(b"websocket") {
            return None;
        }
        let accept = websocket_accept(single_value(&parts.headers, &header::SEC_WEBSOCKET_KEY)?);
        let client = parts.extensions.remove::<PendingUpgrade>()?;
        Some(Self { protocol, accept, client, peer: Arc::clone(peer), permit: peer.permit()? })
    }

    /// Adds the upgrade fields to the request for the upstream.
    pub(crate) fn add_headers(&self, headers: &mut HeaderMap) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, self.protocol.clone());
    }

    /// Starts the tunnel if the upstream accepted the upgrade, and returns whether it did. Without
    /// the proof that it speaks WebSocket, what follows could be requests that bypass every route.
    pub(crate) fn start_tunnel(self, response: &mut Response<UpstreamBody>) -> bool {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS && !self.is_proven(response) {
            return false;
        }
        let UpstreamBody::Http1(body) = response.body_mut() else { return false };
        let Some((server, first)) = body.take_stream() else { return false };
        let connection = Arc::clone(self.peer.connection());
        let tunnel = Tunnel::new(&connection);
        let task = tokio::spawn(self.run_tunnel(server, first, tunnel));
        connection.set_task(task.abort_handle());
        true
    }

    fn is_proven(&self, response: &Response<UpstreamBody>) -> bool {
        let field = |name| single_value(response.headers(), &name);
        field(header::UPGRADE).is_some_and(|to| to.eq_ignore_ascii_case(b"websocket"))
            && field(header::SEC_WEBSOCKET_ACCEPT) == Some(self.accept.as_bytes())
    }

    /// Copies bytes until one side ends or both are idle for too long, starting with the bytes that
    /// were already read. A tunnel may last for days, so the shutdown does not wait for it.
    async fn run_tunnel(self, mut server: UpstreamStream, first: BytesMut, tunnel: Tunnel) {
        let Some((io, buffered)) = self.client.connection().await else { return };
        let mut client = TrackedStream { io, connection: Arc::clone(self.peer.connection()) };
        let mut copying = pin!(async {
            client.write_all(&first).await?;
            client.flush().await?;
            server.write_all(&buffered).await?;
            server.flush().await?;
            copy_bidirectional(&mut client, &mut server).await
        });
        let mut idle = pin!(tunnel.wait_idle(self.peer.tunnel_timeout));
        let mut shutdown = self.peer.shutdown.clone();
        tokio::select! {
            // Neither side can be notified of an error.
            _ = copying.as_mut() => return,
            () = idle.as_mut() => return,
            () = shutdown.wait_for(ShutdownPhase::Closing) => drop(self.permit),
        }
        tokio::select! {
            _ = copying => {}
            () = idle => {}
        }
    }
}

/// The client's side of a tunnel. Records activity in both directions.
struct TrackedStream {
    io: Box<dyn Io>,
    connection: Arc<OpenConnection>,
}

impl TrackedStream {
    fn record(&self, written: io::Result<usize>) -> Poll<io::Result<usize>> {
        if matches!(written, Ok(1..)) {
            self.connection.touch();
        }
        Poll::Ready(written)
    }
}

impl AsyncRead for TrackedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            self.connection.touch();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TrackedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(context, bytes));
        self.record(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

/// The value of a field that occurs exactly once.
fn single_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut lines = headers.get_all(name).iter();
    lines.next().filter(|_| lines.next().is_none()).map(HeaderValue::as_bytes)
}

/// The `Sec-WebSocket-Accept` that goes with a key (RFC 6455, section 4.2.2).
fn websocket_accept(key: &[u8]) -> String {
    let digest = Sha1::new().chain_update(key).chain_update("258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    BASE64.encode(&digest.finalize())
}
