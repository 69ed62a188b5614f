//! Connections that stop to speak HTTP: WebSocket and its like. After 101 the bytes of both sides
//! are passed on until one of them ends.

use std::{pin::pin, sync::Arc};

use bytes::BytesMut;
use http::{HeaderMap, HeaderValue, Method, Response, Version, header, request};
use tokio::io::{AsyncWriteExt as _, copy_bidirectional};

use super::{
    body::Source,
    headers,
    http1::{Handover, Stream},
    listen::Place,
    peer::Peer,
    stop::Phase,
};

/// A client that wants to go on in another protocol.
#[derive(Debug)]
pub(crate) struct Upgrade {
    protocol: HeaderValue,
    client: Handover,
    peer: Arc<Peer>,
    /// The connection counts until its new protocol ends.
    place: Arc<Place>,
}

impl Upgrade {
    /// What a request asks for, if it does. To be called before the fields of the connection are
    /// removed.
    pub(crate) fn asked(parts: &mut request::Parts, peer: &Arc<Peer>) -> Option<Self> {
        if parts.version != Version::HTTP_11 {
            return None;
        }
        let protocol = parts.headers.get(header::UPGRADE)?.clone();
        if !headers::is_named(&parts.headers, &header::UPGRADE) {
            return None;
        }
        let has_body = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING];
        if has_body.iter().any(|name| parts.headers.contains_key(name)) {
            // Its end would be lost among the bytes of the other protocol.
            return None;
        }
        // Behind an upgrade to HTTP/2 or TLS there would be requests again, past every route.
        if parts.method != Method::GET || !protocol.as_bytes().eq_ignore_ascii_case(b"websocket") {
            return None;
        }
        let client = parts.extensions.remove::<Handover>()?;
        Some(Self { protocol, client, peer: Arc::clone(peer), place: peer.place()? })
    }

    /// Asks the next one for the same.
    pub(crate) fn ask(&self, headers: &mut HeaderMap) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, self.protocol.clone());
    }

    /// Joins the two sides if the upstream agreed. Says whether it did.
    pub(crate) fn join(self, response: &mut Response<Source>) -> bool {
        let Source::Http1(answer) = response.body_mut() else { return false };
        let Some((server, first)) = answer.take_stream() else { return false };
        tokio::spawn(self.pass_on(server, first));
        true
    }

    /// Passes on until one side ends, beginning with what both have said already. It may go
    /// on for days, so the end of the gateway does not wait for it.
    async fn pass_on(self, mut server: Stream, first: BytesMut) {
        let Some((mut client, asked)) = self.client.connection().await else { return };
        let mut copying = pin!(async {
            client.write_all(&first).await?;
            client.flush().await?;
            server.write_all(&asked).await?;
            server.flush().await?;
            copy_bidirectional(&mut client, &mut server).await
        });
        let mut stop = self.peer.stop.clone();
        tokio::select! {
            // Whichever side ends it: there is nobody to tell.
            _ = copying.as_mut() => return,
            () = stop.reached(Phase::Closing) => drop(self.place),
        }
        let _ = copying.await;
    }
}
