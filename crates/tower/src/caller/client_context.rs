//! What the server knows about the client of a request.

use std::{net::IpAddr, sync::Arc};

use http::Extensions;
use semel::Sender;

use super::ClientCertificate;
use crate::memory::PeerMemory;

/// What the server knows about the client of a request: an extension that it inserts, as far as
/// the route needs it.
///
/// ```
/// use http::Request;
/// use semel_tower::ClientContext;
///
/// let mut client = ClientContext::default();
/// client.address = Some([10, 0, 0, 1].into());
/// let mut request = Request::new(());
/// request.extensions_mut().insert(client);
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ClientContext {
    /// The address at the other end of the connection, for
    /// [`Callers::header_from`](crate::Callers::header_from). It is the peer of the socket and
    /// never the content of a header.
    pub address: Option<IpAddr>,
    /// The verified certificate of the connection, for
    /// [`Callers::client_certificate`](crate::Callers::client_certificate).
    pub certificate: Option<Arc<ClientCertificate>>,
    /// Whose share of the bodies in progress the request takes.
    pub sender: Sender,
    /// The share of memory for bodies and answers; without one they are not limited.
    pub memory: Option<PeerMemory>,
}

impl ClientContext {
    pub(crate) fn of(extensions: &Extensions) -> Option<&Self> {
        extensions.get()
    }

    /// The share of memory of a request.
    pub(crate) fn memory_of(extensions: &Extensions) -> Option<&PeerMemory> {
        Self::of(extensions)?.memory.as_ref()
    }

    /// The sender of a request, if it is known.
    pub(crate) fn sender_of(extensions: &Extensions) -> Sender {
        Self::of(extensions).map(|client| client.sender).unwrap_or_default()
    }
}
