//! TLS towards clients, with certificates that are reloaded when their files change, and towards
//! `https://` upstreams.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use anyhow::{Context as _, bail};
use arc_swap::ArcSwap;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore, ServerConfig, ServerConnection,
        crypto::{CryptoProvider, aws_lc_rs},
        server::{NoServerSessionStorage, WebPkiClientVerifier},
        sign::{CertifiedKey, SingleCertAndKey},
    },
};

use crate::error::ForwardError;
use semel_config::{ClientAuth, Protocol, Tls, Upstream};
use semel_http1::io::CountedStream;
use semel_telemetry::metrics::Metrics;
use semel_tower::{ClientCertificate, ClientCertificateError};

const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

fn crypto_provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// The gateway's certificate and the authorities of its clients, which can be replaced.
#[derive(Debug)]
pub(crate) struct Certificate {
    current: ArcSwap<ServerConfig>,
    source: Mutex<CertificateFiles>,
    /// Shows when it expires.
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct CertificateFiles {
    files: Tls,
    /// Modification times at the last read.
    modified: ModifiedTimes,
}

type ModifiedTimes = [Option<SystemTime>; 3];

impl Certificate {
    pub(crate) fn read(files: &Tls, metrics: &Arc<Metrics>) -> anyhow::Result<Arc<Self>> {
        let modified = modified_times(files);
        let (config, not_after) = load_server_config(files)?;
        metrics.set_certificate_not_after(not_after);
        let source = Mutex::new(CertificateFiles { files: files.clone(), modified });
        let (current, metrics) = (ArcSwap::from_pointee(config), Arc::clone(metrics));
        Ok(Arc::new(Self { current, source, metrics }))
    }

    /// Fails if the files cannot be used.
    pub(crate) fn check(files: &Tls) -> anyhow::Result<()> {
        load_server_config(files).map(|_| ())
    }

    /// Accepts TLS clients with the files as they were last read.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.load_full())
    }

    /// Reloads the files if they have changed, and returns whether they had. On an error the old
    /// certificate stays.
    pub(crate) fn refresh(&self) -> anyhow::Result<bool> {
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        let now = modified_times(&source.files);
        if now == source.modified {
            return Ok(false);
        }
        // An invalid certificate is not tried again until the files change.
        source.modified = now;
        let (config, not_after) = load_server_config(&source.files)?;
        self.metrics.set_certificate_not_after(not_after);
        self.current.store(Arc::new(config));
        Ok(true)
    }

    /// Uses other files from now on.
    pub(crate) fn replace(&self, files: &Tls) -> anyhow::Result<()> {
        let modified = modified_times(files);
        let (config, not_after) = load_server_config(files)?;
        self.metrics.set_certificate_not_after(not_after);
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        *source = CertificateFiles { files: files.clone(), modified };
        self.current.store(Arc::new(config));
        Ok(())
    }
}

/// The settings towards clients, and when the certificate expires, in seconds since 1970. HTTP/2
/// is preferred. Where clients have certificates, no session
/// is resumed: that would not verify the certificate again, which may have expired meanwhile.
fn load_server_config(files: &Tls) -> anyhow::Result<(ServerConfig, i64)> {
    let key = load_certified_key(files)?;
    let not_after = not_after(&key).with_context(|| {
        format!("cannot read the certificate in {}", files.certificate.display())
    })?;
    let builder = ServerConfig::builder_with_provider(crypto_provider())
        .with_safe_default_protocol_versions()?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let roots = Arc::new(root_store(Some(ca))?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, crypto_provider());
            let verifier = match files.client_auth {
                ClientAuth::Optional => verifier.allow_unauthenticated(),
                ClientAuth::Required => verifier,
            };
            let unusable = || format!("the client CA in {} is unusable", ca.display());
            builder.with_client_cert_verifier(verifier.build().with_context(unusable)?)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
    config.alpn_protocols = vec![H2.to_vec(), HTTP_1_1.to_vec()];
    if files.client_ca.is_some() {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok((config, not_after))
}

fn not_after(key: &CertifiedKey) -> anyhow::Result<i64> {
    let leaf = key.end_entity_cert()?;
    let (_, leaf) = x509_parser::parse_x509_certificate(leaf)?;
    Ok(leaf.validity().not_after.timestamp())
}

/// The certificate that a client has sent and the handshake has verified.
pub(crate) fn client_certificate(
    session: &ServerConnection,
) -> Result<Option<ClientCertificate>, ClientCertificateError> {
    let certificate = session.peer_certificates().and_then(|chain| chain.first());
    certificate.map(|certificate| ClientCertificate::from_der(certificate)).transpose()
}

/// Reads the first certificate of a PEM file as that of a client. Its chain is not verified.
pub fn read_client_certificate(path: &Path) -> anyhow::Result<ClientCertificate> {
    let unreadable = || format!("cannot read a certificate from {}", path.display());
    let der = CertificateDer::from_pem_file(path).with_context(unreadable)?;
    ClientCertificate::from_der(&der).with_context(unreadable)
}

fn modified_times(files: &Tls) -> ModifiedTimes {
    let of = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    [of(&files.certificate), of(&files.key), files.client_ca.as_deref().and_then(of)]
}

fn load_certified_key(files: &Tls) -> anyhow::Result<CertifiedKey> {
    let chain = load_certificates(&files.certificate)?;
    let path = files.key.display();
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .with_context(|| format!("cannot read a private key from {path}"))?;
    let key = aws_lc_rs::sign::any_supported_type(&key)
        .with_context(|| format!("the private key in {path} is not supported"))?;
    let certified_key = CertifiedKey::new(chain, key);
    certified_key.keys_match().with_context(|| {
        format!("the key in {path} does not belong to {}", files.certificate.display())
    })?;
    Ok(certified_key)
}

fn load_certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let shown = path.display();
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .with_context(|| format!("cannot read certificates from {shown}"))?
        .collect();
    let chain = chain.with_context(|| format!("cannot read certificates from {shown}"))?;
    if chain.is_empty() {
        bail!("there is no certificate in {shown}");
    }
    Ok(chain)
}

/// Connects to an upstream with or without TLS.
#[derive(Clone)]
pub(crate) enum UpstreamConnector {
    Clear,
    Tls { connector: TlsConnector, name: ServerName<'static> },
}

/// The result of the TLS handshake with an upstream.
pub(crate) enum Negotiated {
    Clear,
    Tls { stream: Box<TlsStream<CountedStream>>, http2: bool },
}

impl UpstreamConnector {
    pub(crate) fn new(upstream: &Upstream) -> anyhow::Result<Self> {
        if !upstream.tls {
            return Ok(Self::Clear);
        }
        let host = upstream.authority.host().trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned())
            .with_context(|| format!("{host} is not a valid name for a certificate"))?;
        let mut config = ClientConfig::builder_with_provider(crypto_provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(root_store(upstream.ca.as_deref())?)
            .with_no_client_auth();
        config.alpn_protocols = match upstream.protocol {
            Protocol::Auto => vec![H2.to_vec(), HTTP_1_1.to_vec()],
            Protocol::Http1 => vec![HTTP_1_1.to_vec()],
            Protocol::Http2 => vec![H2.to_vec()],
        };
        Ok(Self::Tls { connector: TlsConnector::from(Arc::new(config)), name })
    }

    /// Performs the TLS handshake, if the upstream uses TLS.
    pub(crate) async fn tls(
        &self,
        upstream: &Upstream,
        socket: CountedStream,
    ) -> Result<Negotiated, ForwardError> {
        let Self::Tls { connector, name } = self else { return Ok(Negotiated::Clear) };
        let stream = connector.connect(name.clone(), socket).await.map_err(|error| {
            ForwardError::unreachable(format!(
                "the TLS handshake with {} failed: {error}",
                upstream.authority
            ))
        })?;
        let chosen = stream.get_ref().1.alpn_protocol();
        let http2 = match upstream.protocol {
            Protocol::Auto => chosen == Some(H2),
            Protocol::Http1 => false,
            Protocol::Http2 => true,
        };
        Ok(Negotiated::Tls { stream: Box::new(stream), http2 })
    }
}

fn root_store(ca: Option<&Path>) -> anyhow::Result<RootCertStore> {
    let mut root_store = RootCertStore::empty();
    if let Some(path) = ca {
        for certificate in load_certificates(path)? {
            root_store
                .add(certificate)
                .with_context(|| format!("a CA certificate in {} is invalid", path.display()))?;
        }
        return Ok(root_store);
    }
    let found = rustls_native_certs::load_native_certs();
    root_store.add_parsable_certificates(found.certs);
    if root_store.is_empty() {
        bail!(
            "the system has no CA certificates; install ca-certificates, or name a \
             file with `ca`"
        );
    }
    Ok(root_store)
}

impl std::fmt::Debug for UpstreamConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Clear => "Clear",
            Self::Tls { .. } => "Tls",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::atomic::AtomicU64, sync::atomic::Ordering, time::Duration};

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use rustls_pki_types::{PrivatePkcs8KeyDer, UnixTime};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio_rustls::rustls::{
        HandshakeKind, SupportedProtocolVersion,
        time_provider::TimeProvider,
        version::{TLS12, TLS13},
    };

    use super::*;

    /// The end of the client certificate: 2030-01-01, in seconds since 1970.
    const EXPIRY: u64 = 1_893_456_000;

    #[derive(Debug)]
    struct Clock(AtomicU64);

    impl TimeProvider for Clock {
        fn current_time(&self) -> Option<UnixTime> {
            let seconds = Duration::from_secs(self.0.load(Ordering::Relaxed));
            Some(UnixTime::since_unix_epoch(seconds))
        }
    }

    struct Authority(CertifiedIssuer<'static, KeyPair>);

    impl Authority {
        fn new() -> Self {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
        }

        fn certify(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            params.not_after = rcgen::date_time_ymd(2030, 1, 1);
            (params.signed_by(&key, &self.0).unwrap(), key)
        }

        /// The settings of a gateway on a clock, with or without client certificates.
        fn server(&self, has_clients: bool, clock: &Arc<Clock>) -> Arc<ServerConfig> {
            let folder = tempfile::tempdir().unwrap();
            let path = |name: &str| folder.path().join(name);
            let (certificate, key) = self.certify("localhost");
            fs::write(path("cert.pem"), certificate.pem()).unwrap();
            fs::write(path("key.pem"), key.serialize_pem()).unwrap();
            fs::write(path("ca.pem"), self.0.pem()).unwrap();
            let files = Tls {
                certificate: path("cert.pem"),
                key: path("key.pem"),
                client_ca: has_clients.then(|| path("ca.pem")),
                client_auth: ClientAuth::Required,
            };
            let (mut config, _) = load_server_config(&files).unwrap();
            config.time_provider = Arc::<Clock>::clone(clock);
            Arc::new(config)
        }

        /// A client that remembers its sessions.
        fn client(&self, version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
            let mut roots = RootCertStore::empty();
            roots.add(self.0.der().clone()).unwrap();
            let (certificate, key) = self.certify("client");
            let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
            let config = ClientConfig::builder_with_provider(crypto_provider())
                .with_protocol_versions(&[version])
                .unwrap()
                .with_root_certificates(roots)
                .with_client_auth_cert(vec![certificate.der().clone()], key);
            Arc::new(config.unwrap())
        }
    }

    /// Connects, and reads on until a ticket would have come. Fails if the server refuses.
    async fn connect(
        server: &Arc<ServerConfig>,
        client: &Arc<ClientConfig>,
    ) -> io::Result<Option<HandshakeKind>> {
        let (near, far) = duplex(16 << 10);
        let accept = async {
            let mut stream = TlsAcceptor::from(Arc::clone(server)).accept(near).await?;
            stream.write_u8(0).await?;
            stream.flush().await?;
            io::Result::Ok(stream)
        };
        let connect = async {
            let name = ServerName::try_from("localhost").unwrap();
            let mut stream = TlsConnector::from(Arc::clone(client)).connect(name, far).await?;
            stream.read_u8().await?;
            io::Result::Ok(stream.get_ref().1.handshake_kind())
        };
        let (accepted, connected) = tokio::join!(accept, connect);
        accepted.and(connected)
    }

    #[tokio::test]
    async fn a_client_certificate_is_verified_at_every_connection() {
        for version in [&TLS12, &TLS13] {
            let clock = Arc::new(Clock(AtomicU64::new(EXPIRY - 60)));
            let authority = Authority::new();
            let (server, client) = (authority.server(true, &clock), authority.client(version));
            for _ in 0..2 {
                let kind = connect(&server, &client).await.unwrap();
                assert_eq!(kind, Some(HandshakeKind::Full), "{version:?}");
            }
            clock.0.store(EXPIRY + 60, Ordering::Relaxed);
            let refused = connect(&server, &client).await.unwrap_err();
            assert!(refused.to_string().contains("xpired"), "{version:?}: {refused}");
            // Where there is nothing to verify, sessions are resumed.
            let (server, client) = (authority.server(false, &clock), authority.client(version));
            connect(&server, &client).await.unwrap();
            let kind = connect(&server, &client).await.unwrap();
            assert_eq!(kind, Some(HandshakeKind::Resumed), "{version:?}");
        }
    }
}
