//! Who is at the other end of a client's connection.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use http::HeaderValue;

use super::{alarm::SharedAlarm, listen::Place, stop::Stop};

/// A client's connection, as its requests see it.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Its address, as headers say it.
    ip: HeaderValue,
    /// The same, and how it came, as an element of `Forwarded`.
    forwarded: Box<str>,
    /// The last such element with the host that was asked for: most ask for the same again.
    last: Mutex<Option<(HeaderValue, HeaderValue)>>,
    tls: bool,
    /// The end of the gateway.
    pub(crate) stop: Stop,
    /// How long a body that it sends may take, where it sends one at a time.
    pub(crate) alarm: SharedAlarm,
    /// Weak: a request that outlives its connection does not keep another client out.
    place: Weak<Place>,
}

impl Peer {
    pub(crate) fn new(address: SocketAddr, tls: bool, stop: Stop, place: &Arc<Place>) -> Self {
        let ip = address.ip().to_canonical();
        let node = match ip {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("\"[{ip}]\""),
        };
        let forwarded = format!("for={node};proto={}", scheme(tls)).into();
        // Every address is a value; what RFC 7239 has for none is never seen.
        let unknown = |_| HeaderValue::from_static("unknown");
        let ip = HeaderValue::try_from(ip.to_string()).unwrap_or_else(unknown);
        let place = Arc::downgrade(place);
        let (last, alarm) = (Mutex::default(), SharedAlarm::default());
        Self { ip, forwarded, last, tls, stop, alarm, place }
    }

    pub(crate) const fn ip(&self) -> &HeaderValue {
        &self.ip
    }

    /// Its element of `Forwarded`, for a request to this host.
    pub(crate) fn forwarded(&self, host: Option<&HeaderValue>) -> Option<HeaderValue> {
        let quotable = |host: &&str| !host.contains(['"', '\\']);
        let Some(asked) = host else { return HeaderValue::from_str(&self.forwarded).ok() };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((host, element)) = &*last
            && host == asked
        {
            return Some(element.clone());
        }
        let element = match asked.to_str().ok().filter(quotable) {
            Some(host) => [&*self.forwarded, ";host=\"", host, "\""].concat(),
            None => self.forwarded.clone().into_string(),
        };
        let element = HeaderValue::try_from(element).ok()?;
        *last = Some((asked.clone(), element.clone()));
        Some(element)
    }

    /// The place of its connection, for whoever goes on with that; `None` if it has ended.
    pub(crate) fn place(&self) -> Option<Arc<Place>> {
        self.place.upgrade()
    }

    pub(crate) const fn scheme(&self) -> &'static str {
        scheme(self.tls)
    }
}

const fn scheme(tls: bool) -> &'static str {
    if tls { "https" } else { "http" }
}
