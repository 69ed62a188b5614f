//! The client at the other end of a connection.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use http::HeaderValue;
use semel_tower::{ClientCertificate, ClientContext, MemoryBudget, PeerMemory};

use crate::connections::{ConnectionPermit, OpenConnection};
use crate::shutdown::Shutdown;
use semel_http1::lazy_timer::SharedLazyTimer;

/// A client and its connection, as its requests see them.
#[derive(Debug)]
pub(crate) struct ClientPeer {
    pub(crate) address: IpAddr,
    /// Its certificate, if it has sent one.
    certificate: Option<Arc<ClientCertificate>>,
    /// Its address, as a header value.
    ip: HeaderValue,
    /// Its address and scheme, as an element of `Forwarded`.
    forwarded: Box<str>,
    /// The last such element and its host: most requests name the same host again.
    last: Mutex<Option<(HeaderValue, HeaderValue)>>,
    tls: bool,
    /// The shutdown of the gateway.
    pub shutdown: Shutdown,
    /// Timer for its bodies, where it sends one at a time.
    pub(crate) timer: SharedLazyTimer,
    /// Tracks whether the connection is in use.
    connection: Arc<OpenConnection>,
    /// Idle timeout of a tunnel on the connection.
    pub(crate) tunnel_timeout: Duration,
    /// Its share of the memory for bodies and responses.
    pub(crate) memory: PeerMemory,
    /// Weak: a request that outlives its connection does not hold the permit.
    permit: Weak<ConnectionPermit>,
}

impl ClientPeer {
    pub(crate) fn new(
        address: SocketAddr,
        tls: bool,
        shutdown: Shutdown,
        permit: &Arc<ConnectionPermit>,
        tunnel_timeout: Duration,
        memory: &MemoryBudget,
    ) -> Self {
        let canonical = address.ip().to_canonical();
        let node = match canonical {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("\"[{ip}]\""),
        };
        let forwarded = format!("for={node};proto={}", scheme(tls)).into();
        // Every address is a valid header value, so the `unknown` of RFC 7239 is never sent.
        let unknown = |_| HeaderValue::from_static("unknown");
        let ip = HeaderValue::try_from(canonical.to_string()).unwrap_or_else(unknown);
        let connection = Arc::clone(permit.connection());
        let permit = Arc::downgrade(permit);
        let memory = memory.peer(address.ip());
        let (last, timer) = (Mutex::default(), SharedLazyTimer::default());
        Self {
            address: canonical,
            certificate: None,
            ip,
            forwarded,
            last,
            tls,
            shutdown,
            timer,
            memory,
            connection,
            permit,
            tunnel_timeout,
        }
    }

    /// Sets the verified certificate of the client.
    pub(crate) fn with_certificate(self, certificate: Option<ClientCertificate>) -> Self {
        Self { certificate: certificate.map(Arc::new), ..self }
    }

    /// What the guard of a route needs to know about the client.
    pub(crate) fn context(&self) -> ClientContext {
        let mut context = ClientContext::default();
        context.address = Some(self.address);
        context.certificate.clone_from(&self.certificate);
        context.sender = self.connection.sender();
        context.memory = Some(self.memory.clone());
        context
    }

    pub(crate) const fn ip(&self) -> &HeaderValue {
        &self.ip
    }

    /// Its element of `Forwarded` for a request to this host.
    pub(crate) fn forwarded(&self, host: Option<&HeaderValue>) -> Option<HeaderValue> {
        let quotable = |host: &&str| !host.contains(['"', '\\']);
        let Some(requested) = host else { return HeaderValue::from_str(&self.forwarded).ok() };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((host, element)) = &*last
            && host == requested
        {
            return Some(element.clone());
        }
        let element = match requested.to_str().ok().filter(quotable) {
            Some(host) => [&*self.forwarded, ";host=\"", host, "\""].concat(),
            None => self.forwarded.clone().into_string(),
        };
        let element = HeaderValue::try_from(element).ok()?;
        *last = Some((requested.clone(), element.clone()));
        Some(element)
    }

    pub(crate) const fn connection(&self) -> &Arc<OpenConnection> {
        &self.connection
    }

    /// The permit of its connection; `None` if the connection has ended.
    pub(crate) fn permit(&self) -> Option<Arc<ConnectionPermit>> {
        self.permit.upgrade()
    }

    pub(crate) const fn scheme(&self) -> &'static str {
        scheme(self.tls)
    }
}

const fn scheme(tls: bool) -> &'static str {
    if tls { "https" } else { "http" }
}
