//! Connects to an upstream: DNS, TCP, TLS, HTTP. If this fails, nothing of a request was sent.

use std::{fmt, net::SocketAddr, time::Duration};

use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
    time::{sleep, timeout},
};

use crate::error::ForwardError;
use crate::tls::{Negotiated, UpstreamConnector};
use crate::upstream::h2_connection::{Http2Connection, UPSTREAM_STREAMS_MAX};
use semel_config::{Protocol, Upstream};
use semel_http1::io::CountedStream;
use semel_http1::{Http1Connection, UpstreamStream};

/// Interval of HTTP/2 pings to an upstream.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// Bytes of a response that an upstream may send on one HTTP/2 stream ahead of its reader. A window
/// that grows with the speed of the upstream would let a client that does not read hold megabytes.
const STREAM_WINDOW: u32 = 65_535;

/// Interval at which a new HTTP/2 connection is checked for the upstream's SETTINGS.
const SETTINGS_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Idle time before the first TCP keepalive probe.
const TCP_KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

/// A new connection that is ready for its first request.
pub(crate) enum NewConnection {
    Http1(Http1Connection),
    Http2(Http2Connection),
}

pub(crate) async fn connect(
    upstream: &Upstream,
    connector: &UpstreamConnector,
) -> Result<NewConnection, ForwardError> {
    let connected = timeout(upstream.connect_timeout, open(upstream, connector)).await;
    connected.unwrap_or_else(|_| {
        let (authority, after) = (&upstream.authority, upstream.connect_timeout);
        Err(ForwardError::unreachable(format!("no connection to {authority} within {after:?}")))
    })
}

async fn open(
    upstream: &Upstream,
    connector: &UpstreamConnector,
) -> Result<NewConnection, ForwardError> {
    let stream = connect_tcp(upstream).await?;
    // Both are optional: without them a request is slower, or a dead upstream is detected later.
    let _ = stream.set_nodelay(true);
    let keepalive = TcpKeepalive::new().with_time(TCP_KEEPALIVE_IDLE);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
    let socket = CountedStream::new(stream);
    match connector.tls(upstream, socket.clone()).await? {
        Negotiated::Clear if upstream.protocol == Protocol::Http2 => {
            http2(socket.clone(), socket, upstream).await
        }
        Negotiated::Clear => {
            Ok(NewConnection::Http1(Http1Connection::new(UpstreamStream::Clear(socket))))
        }
        Negotiated::Tls { stream, http2: true } => http2(stream, socket, upstream).await,
        Negotiated::Tls { stream, http2: false } => {
            Ok(NewConnection::Http1(Http1Connection::new(UpstreamStream::Tls(stream))))
        }
    }
}

async fn connect_tcp(upstream: &Upstream) -> Result<TcpStream, ForwardError> {
    let authority = &upstream.authority;
    let port = authority.port_u16().unwrap_or(if upstream.tls { 443 } else { 80 });
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let addresses: Vec<SocketAddr> = lookup_host((host, port))
        .await
        .map_err(|error| ForwardError::unreachable(format!("cannot find {host}: {error}")))?
        .collect();
    // Divide the timeout, so that an unresponsive address leaves time for the others.
    let share = u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    let timeout_each = upstream.connect_timeout / share;
    let mut last = None;
    for address in &addresses {
        match timeout(timeout_each, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = Some(format!("cannot connect to {address}: {error}")),
            Err(_) => last = Some(format!("{address} did not respond")),
        }
    }
    Err(ForwardError::unreachable(last.unwrap_or_else(|| format!("{host} has no address"))))
}

async fn http2<T>(
    io: T,
    socket: CountedStream,
    upstream: &Upstream,
) -> Result<NewConnection, ForwardError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, mut connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        // Responses that their clients do not read leave the others their windows.
        .initial_connection_window_size(STREAM_WINDOW * u32::from(UPSTREAM_STREAMS_MAX))
        .keep_alive_interval(PING_INTERVAL)
        .initial_max_send_streams(0)
        .handshake(TokioIo::new(io))
        .await
        .map_err(|error| not_http(upstream, &error))?;
    // Nothing is sent before the upstream's SETTINGS arrive: it would refuse streams above its
    // limit, and may not speak HTTP/2 at all. hyper has no notification for that, so it is polled.
    while connection.current_max_send_streams() == 0 {
        tokio::select! {
            ended = &mut connection => {
                let error = ended.err().map(|error| error.to_string());
                let error = error.unwrap_or_else(|| "the connection was closed".to_owned());
                return Err(not_http(upstream, &error));
            }
            () = sleep(SETTINGS_POLL_INTERVAL) => {}
        }
    }
    let shared = Http2Connection::new(sender, socket, connection.current_max_send_streams());
    tokio::spawn(shared.clone().drive(connection, http2::Connection::current_max_send_streams));
    Ok(NewConnection::Http2(shared))
}

fn not_http(upstream: &Upstream, error: &impl fmt::Display) -> ForwardError {
    ForwardError::unreachable(format!("{} does not speak HTTP: {error}", upstream.authority))
}
