//! TLS on both sides: certificates that are read again when their files change, and upstreams that
//! are reached by `https://`.

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
        ClientConfig, RootCertStore, ServerConfig,
        crypto::{CryptoProvider, aws_lc_rs},
        server::{ClientHello, ResolvesServerCert},
        sign::CertifiedKey,
    },
};

use super::{error::ForwardError, wire::Socket};
use crate::config::{Protocol, Tls, Upstream};

const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// The gateway's own certificate, as it is now.
#[derive(Debug)]
pub(crate) struct Certificate {
    current: ArcSwap<CertifiedKey>,
    source: Mutex<Source>,
}

#[derive(Debug)]
struct Source {
    files: Tls,
    /// When the files were last changed, as of the last reading.
    changed: Changed,
}

type Changed = [Option<SystemTime>; 2];

impl Certificate {
    pub(crate) fn read(files: &Tls) -> anyhow::Result<Arc<Self>> {
        let changed = changed(files);
        let current = ArcSwap::from_pointee(certified(files)?);
        let source = Mutex::new(Source { files: files.clone(), changed });
        Ok(Arc::new(Self { current, source }))
    }

    /// Takes clients by TLS, HTTP/2 first.
    pub(crate) fn acceptor(self: &Arc<Self>) -> anyhow::Result<TlsAcceptor> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![H2.to_vec(), HTTP_1_1.to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// Reads the files again if they have changed. Says whether they had; on an error the old
    /// certificate stays.
    pub(crate) fn refresh(&self) -> anyhow::Result<bool> {
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        let now = changed(&source.files);
        if now == source.changed {
            return Ok(false);
        }
        // Not tried again until the files change once more.
        source.changed = now;
        self.current.store(Arc::new(certified(&source.files)?));
        Ok(true)
    }

    /// Reads other files from now on.
    pub(crate) fn replace(&self, files: &Tls) -> anyhow::Result<()> {
        let changed = changed(files);
        let key = certified(files)?;
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        *source = Source { files: files.clone(), changed };
        self.current.store(Arc::new(key));
        Ok(())
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

fn changed(files: &Tls) -> Changed {
    let of = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    [of(&files.certificate), of(&files.key)]
}

fn certified(files: &Tls) -> anyhow::Result<CertifiedKey> {
    let chain = certificates(&files.certificate)?;
    let path = files.key.display();
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .with_context(|| format!("cannot read a private key from {path}"))?;
    let key = aws_lc_rs::sign::any_supported_type(&key)
        .with_context(|| format!("the private key in {path} is of no use"))?;
    let certified = CertifiedKey::new(chain, key);
    certified.keys_match().with_context(|| {
        format!("the key in {path} does not belong to {}", files.certificate.display())
    })?;
    Ok(certified)
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
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

/// How an upstream is reached.
#[derive(Clone)]
pub(crate) enum Connector {
    Clear,
    Tls { connector: TlsConnector, name: ServerName<'static> },
}

/// What is spoken on a connection to an upstream.
pub(crate) enum Spoken {
    Clear,
    Tls { stream: Box<TlsStream<Socket>>, http2: bool },
}

impl Connector {
    pub(crate) fn new(upstream: &Upstream) -> anyhow::Result<Self> {
        if !upstream.tls {
            return Ok(Self::Clear);
        }
        let host = upstream.authority.host().trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned())
            .with_context(|| format!("{host} is no name that a certificate can have"))?;
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots(upstream.ca.as_deref())?)
            .with_no_client_auth();
        config.alpn_protocols = match upstream.protocol {
            Protocol::Auto => vec![H2.to_vec(), HTTP_1_1.to_vec()],
            Protocol::Http1 => vec![HTTP_1_1.to_vec()],
            Protocol::Http2 => vec![H2.to_vec()],
        };
        Ok(Self::Tls { connector: TlsConnector::from(Arc::new(config)), name })
    }

    /// Encrypts a connection, if it is to be.
    pub(crate) async fn tls(
        &self,
        upstream: &Upstream,
        socket: Socket,
    ) -> Result<Spoken, ForwardError> {
        let Self::Tls { connector, name } = self else { return Ok(Spoken::Clear) };
        let stream = connector.connect(name.clone(), socket).await.map_err(|error| {
            ForwardError::unreachable(format!("no TLS with {}: {error}", upstream.authority))
        })?;
        let chosen = stream.get_ref().1.alpn_protocol();
        let http2 = match upstream.protocol {
            Protocol::Auto => chosen == Some(H2),
            Protocol::Http1 => false,
            Protocol::Http2 => true,
        };
        Ok(Spoken::Tls { stream: Box::new(stream), http2 })
    }
}

fn roots(ca: Option<&Path>) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = ca {
        for certificate in certificates(path)? {
            roots.add(certificate).with_context(|| {
                format!("a certificate in {} cannot be trusted", path.display())
            })?;
        }
        return Ok(roots);
    }
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        bail!(
            "this machine has no certificates of authorities; install ca-certificates, or name a \
             file with `ca`"
        );
    }
    Ok(roots)
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Clear => "Clear",
            Self::Tls { .. } => "Tls",
        })
    }
}
