//! Connecting to an upstream: name, socket, TLS, HTTP. Whatever fails here, nothing of a request
//! was sent.

use std::{fmt, net::SocketAddr, time::Duration};

use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
    time::{sleep, timeout},
};

use super::{
    error::ForwardError,
    http1::{Connection, Stream},
    shared::Shared,
    tls::{Connector, Spoken},
    wire::Socket,
};
use crate::config::{Protocol, Upstream};

/// How often a shared connection is asked whether it is still alive.
const PING_EVERY: Duration = Duration::from_secs(10);

/// How often a new connection over HTTP/2 is asked whether the upstream has said what it allows.
const ASK_EVERY: Duration = Duration::from_millis(1);

/// After this long without a byte, the kernel asks whether the other side is still there.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);

/// A connection that is ready for its first request.
pub(crate) enum Connected {
    Http1(Connection),
    Http2(Shared),
}

pub(crate) async fn connect(
    upstream: &Upstream,
    connector: &Connector,
) -> Result<Connected, ForwardError> {
    let connected = timeout(upstream.connect_timeout, open(upstream, connector)).await;
    connected.unwrap_or_else(|_| {
        let (authority, after) = (&upstream.authority, upstream.connect_timeout);
        Err(ForwardError::unreachable(format!("no connection to {authority} within {after:?}")))
    })
}

async fn open(upstream: &Upstream, connector: &Connector) -> Result<Connected, ForwardError> {
    let stream = reach(upstream).await?;
    // Neither is vital: a request without them is slower, or its end is noticed later.
    let _ = stream.set_nodelay(true);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
    let socket = Socket::new(stream);
    match connector.tls(upstream, socket.clone()).await? {
        Spoken::Clear if upstream.protocol == Protocol::Http2 => {
            http2(socket.clone(), socket, upstream).await
        }
        Spoken::Clear => Ok(Connected::Http1(Connection::new(Stream::Clear(socket)))),
        Spoken::Tls { stream, http2: true } => http2(stream, socket, upstream).await,
        Spoken::Tls { stream, http2: false } => {
            Ok(Connected::Http1(Connection::new(Stream::Tls(stream))))
        }
    }
}

async fn reach(upstream: &Upstream) -> Result<TcpStream, ForwardError> {
    let authority = &upstream.authority;
    let port = authority.port_u16().unwrap_or(if upstream.tls { 443 } else { 80 });
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let addresses: Vec<SocketAddr> = lookup_host((host, port))
        .await
        .map_err(|error| ForwardError::unreachable(format!("cannot find {host}: {error}")))?
        .collect();
    // An address that does not answer leaves time for the others.
    let share = u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    let patience = upstream.connect_timeout / share;
    let mut last = None;
    for address in &addresses {
        match timeout(patience, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = Some(format!("cannot connect to {address}: {error}")),
            Err(_) => last = Some(format!("{address} does not answer")),
        }
    }
    Err(ForwardError::unreachable(last.unwrap_or_else(|| format!("{host} has no address"))))
}

async fn http2<T>(io: T, socket: Socket, upstream: &Upstream) -> Result<Connected, ForwardError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, mut connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .adaptive_window(true)
        .keep_alive_interval(PING_EVERY)
        .initial_max_send_streams(0)
        .handshake(TokioIo::new(io))
        .await
        .map_err(|error| refused(upstream, &error))?;
    // Nothing is sent before the upstream has said how many requests it allows: it would refuse
    // those beyond, and may not speak HTTP/2 at all. hyper tells nobody when, so it is asked.
    while connection.current_max_send_streams() == 0 {
        tokio::select! {
            ended = &mut connection => {
                let error = ended.err().map(|error| error.to_string());
                return Err(refused(upstream, &error.unwrap_or_else(|| "it hung up".to_owned())));
            }
            () = sleep(ASK_EVERY) => {}
        }
    }
    let shared = Shared::new(sender, socket, connection.current_max_send_streams());
    tokio::spawn(shared.clone().drive(connection, http2::Connection::current_max_send_streams));
    Ok(Connected::Http2(shared))
}

fn refused(upstream: &Upstream, error: &impl fmt::Display) -> ForwardError {
    ForwardError::unreachable(format!("{} does not speak HTTP: {error}", upstream.authority))
}
