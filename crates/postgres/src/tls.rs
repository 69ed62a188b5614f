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

/// Opens TLS connections.
#[derive(Clone)]
pub(crate) struct MakeRustlsConnect(TlsConnector);

impl MakeRustlsConnect {
    /// Verifies the server's certificate and name, by the certificates in a file or by those that
    /// the system trusts.
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

    /// Encrypts without verifying the server, as `prefer` and `require` do in libpq.
    pub(crate) fn unverified() -> Result<Self, String> {
        let provider = provider();
        let verifier = AcceptAnyCertificate(provider.signature_verification_algorithms);
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
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

impl MakeTlsConnect<Socket> for MakeRustlsConnect {
    type Stream = RustlsStream;
    type TlsConnect = RustlsHandshake;
    type Error = io::Error;

    // The name is checked at the handshake, because a Unix socket has none.
    fn make_tls_connect(&mut self, host: &str) -> io::Result<RustlsHandshake> {
        Ok(RustlsHandshake { connector: self.0.clone(), host: host.to_owned() })
    }
}

pub(crate) struct RustlsHandshake {
    connector: TlsConnector,
    host: String,
}

impl TlsConnect<Socket> for RustlsHandshake {
    type Stream = RustlsStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<RustlsStream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let name = ServerName::try_from(self.host).map_err(io::Error::other)?;
            Ok(RustlsStream(self.connector.connect(name, socket).await?))
        })
    }
}

pub(crate) struct RustlsStream(client::TlsStream<Socket>);

impl tokio_postgres::tls::TlsStream for RustlsStream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for RustlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for RustlsStream {
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

/// Accepts every certificate, but checks that the server holds its private key.
#[derive(Debug)]
struct AcceptAnyCertificate(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AcceptAnyCertificate {
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
