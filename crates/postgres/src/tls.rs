//! TLS to the database, on rustls.

use std::{
    io,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use rustls_pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::{
    Socket,
    tls::{ChannelBinding, MakeTlsConnect, TlsConnect},
};
use tokio_rustls::{
    TlsConnector, client,
    rustls::{
        ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
        client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        crypto::{
            CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature,
            verify_tls13_signature,
        },
    },
};

/// Makes TLS connections.
#[derive(Clone)]
pub(crate) struct Tls(TlsConnector);

impl Tls {
    /// Verifies that the server is who the URL says: against the certificates in a file, or else
    /// against those that the system trusts.
    pub(crate) fn verified(roots: Option<&Path>) -> Result<Self, String> {
        let mut store = RootCertStore::empty();
        let certificates = match roots {
            Some(path) => read(path)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        store.add_parsable_certificates(certificates);
        if store.is_empty() {
            let file = roots.map_or_else(|| "the system".to_owned(), |p| p.display().to_string());
            return Err(format!("no certificate to trust was found in {file}"));
        }
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        Ok(Self::with(builder.with_root_certificates(store).with_no_client_auth()))
    }

    /// Encrypts, and believes any server: what `prefer` and `require` have always meant.
    pub(crate) fn unverified() -> Result<Self, String> {
        let provider = provider();
        let believer = Believer(provider.signature_verification_algorithms);
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(believer))
            .with_no_client_auth();
        Ok(Self::with(config))
    }

    fn with(config: ClientConfig) -> Self {
        Self(TlsConnector::from(Arc::new(config)))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn read(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let unreadable = |error| format!("cannot read certificates from {}: {error}", path.display());
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error: rustls_pki_types::pem::Error| unreadable(error))
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Encrypted;
    type TlsConnect = Handshake;
    type Error = io::Error;

    // A name that cannot be verified matters only if TLS is spoken: not on a Unix socket.
    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        Ok(Handshake { connector: self.0.clone(), host: host.to_owned() })
    }
}

pub(crate) struct Handshake {
    connector: TlsConnector,
    host: String,
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let name = ServerName::try_from(self.host).map_err(io::Error::other)?;
            Ok(Encrypted(self.connector.connect(name, socket).await?))
        })
    }
}

pub(crate) struct Encrypted(client::TlsStream<Socket>);

impl tokio_postgres::tls::TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// Believes every certificate, but not a server that does not hold its key.
#[derive(Debug)]
struct Believer(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Believer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
