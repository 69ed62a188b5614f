//! Certificates for the tests, and both ends of TLS with them.

use std::{fs, net::SocketAddr, path::Path, sync::Arc};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, RootCertStore, ServerConfig, crypto::aws_lc_rs::default_provider},
};

use crate::soon;

/// Someone who signs certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its key.
pub(crate) struct Identity {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes down whom to trust.
    pub(crate) fn write(&self, path: &Path) {
        fs::write(path, self.0.pem()).unwrap();
    }

    /// A certificate for a name or an address.
    pub(crate) fn certify(&self, name: &str) -> Identity {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        Identity { certificate: params.signed_by(&key, &self.0).unwrap(), key }
    }

    /// Trusts this authority alone and offers these protocols.
    pub(crate) fn client(&self, protocols: &[&str]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let mut config = ClientConfig::builder_with_provider(default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    /// Connects to a server that must be `localhost`.
    pub(crate) async fn connect(
        &self,
        address: SocketAddr,
        protocols: &[&str],
    ) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let connector = TlsConnector::from(self.client(protocols));
        soon(connector.connect(name, stream)).await.unwrap()
    }
}

impl Identity {
    /// Puts certificate and key where a gateway looks for them, each as a whole.
    pub(crate) fn install(&self, folder: &Path) {
        let put = |name: &str, text: String| {
            let new = folder.join(format!("{name}.new"));
            fs::write(&new, text).unwrap();
            fs::rename(new, folder.join(name)).unwrap();
        };
        put("cert.pem", self.certificate.pem());
        put("key.pem", self.key.serialize_pem());
    }

    pub(crate) fn der(&self) -> &CertificateDer<'static> {
        self.certificate.der()
    }

    /// A server with this certificate.
    pub(crate) fn acceptor(&self, protocols: &[&str]) -> TlsAcceptor {
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![self.der().clone()], key)
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }
}
