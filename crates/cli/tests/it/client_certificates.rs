//! Callers that a client certificate names.

use std::{fs, io, net::SocketAddr, sync::Arc};

use http::HeaderValue;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
    SanType,
};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{ClientConfig, RootCertStore, ServerConfig, crypto::aws_lc_rs::default_provider},
};

use crate::{
    common::{ClientRequest, Gateway, ORDER, Setup, TestResponse, Upstream, charge},
    verified_callers::name_of,
};

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

struct Identity(rcgen::Certificate, KeyPair);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A certificate for this common name and these URIs or DNS names.
    fn certify(&self, name: &str, alternatives: Vec<SanType>) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Shops, Inc.");
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = alternatives;
        Identity(params.signed_by(&key, &self.0).unwrap(), key)
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Serves TLS as `localhost` in front of a plain server. Returns the URL.
    pub(crate) async fn serve_tls_before(&self, server: SocketAddr) -> String {
        let names = vec![SanType::DnsName("localhost".try_into().unwrap())];
        let Identity(certificate, key) = self.certify("localhost", names);
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let mut client = acceptor.accept(client).await?;
                    let mut server = TcpStream::connect(server).await?;
                    copy_bidirectional(&mut client, &mut server).await
                });
            }
        });
        format!("https://localhost:{port}")
    }

    /// Sends a request to `localhost` with this certificate, on a connection of its own.
    async fn send(
        &self,
        address: SocketAddr,
        identity: Option<&Identity>,
        mut request: ClientRequest,
    ) -> io::Result<TestResponse> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some(Identity(certificate, key)) => {
                let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
                builder.with_client_auth_cert(vec![certificate.der().clone()], key).unwrap()
            }
        };
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(io::Error::other)?;
        tokio::spawn(connection);
        request.headers_mut().insert("host", HeaderValue::from_static("localhost"));
        let answer = sender.send_request(request).await.map_err(io::Error::other)?;
        TestResponse::try_read(answer).await.map_err(io::Error::other)
    }
}

/// A gateway that asks clients for a certificate of this authority.
fn setup(authority: &Authority, upstream: &Upstream, rule: &str, auth: &str) -> Setup {
    let tls = format!(
        "tls = {{ certificate = \"cert.pem\", key = \"key.pem\", client_ca = \"ca.pem\", \
         client_auth = \"{auth}\" }}"
    );
    let setup = Setup::new(&upstream.url()).gateway(tls).defaults(rule);
    let server =
        authority.certify("server", vec![SanType::DnsName("localhost".try_into().unwrap())]);
    let folder = setup.file().parent().unwrap().to_owned();
    fs::write(folder.join("cert.pem"), server.0.pem()).unwrap();
    fs::write(folder.join("key.pem"), server.1.serialize_pem()).unwrap();
    fs::write(folder.join("ca.pem"), authority.0.pem()).unwrap();
    setup
}

async fn gateway(authority: &Authority, upstream: &Upstream, rule: &str, auth: &str) -> Gateway {
    setup(authority, upstream, rule, auth).start().await
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

#[tokio::test]
async fn a_renewed_certificate_of_the_same_name_is_the_same_caller() {
    let (authority, upstream) = (Authority::new(), Upstream::plain().await);
    for (rule, stored) in [
        ("subject", "mtls:subject:O=Shops\\, Inc.,CN=shop-7"),
        ("san", "mtls:san:uri:spiffe://shops/7"),
    ] {
        let rule = format!("caller = [{{ mtls = \"{rule}\" }}]");
        let gateway = gateway(&authority, &upstream, &rule, "optional").await;
        let before = upstream.request_count();
        let names = || {
            vec![uri("spiffe://shops/7"), SanType::DnsName("shop-7.example".try_into().unwrap())]
        };
        let shop = authority.certify("shop-7", names());
        let send = |identity| authority.send(gateway.address(), identity, charge("a", ORDER));
        let first = send(Some(&shop)).await.unwrap();
        assert_eq!(first.status.as_u16(), 201, "{first:?}");
        let renewed = authority.certify("shop-7", names());
        send(Some(&renewed)).await.unwrap().assert_replay_of(&first);
        let other = authority.certify("shop-8", vec![uri("spiffe://shops/8")]);
        assert!(!send(Some(&other)).await.unwrap().is_replayed());
        assert_eq!(upstream.request_count(), before + 2);
        let records = gateway.records().await;
        assert!(records.iter().any(|record| record.id.caller.as_str() == stored), "{records:?}");
        let none = send(None).await.unwrap();
        none.assert_problem(403, "caller-unidentified");
        assert!(none.text().contains("client certificate"), "{none:?}");
        gateway.assert_clean_shutdown().await;
    }
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_refused_in_the_handshake() {
    let (authority, other) = (Authority::new(), Authority::new());
    let upstream = Upstream::plain().await;
    let rule = "caller = [{ mtls = \"fingerprint\" }, \"anonymous\"]";
    for auth in ["optional", "required"] {
        let gateway = gateway(&authority, &upstream, rule, auth).await;
        let before = upstream.request_count();
        let other_client = other.certify("shop-7", vec![uri("spiffe://shops/7")]);
        let send = |identity| authority.send(gateway.address(), identity, charge(auth, ORDER));
        assert!(send(Some(&other_client)).await.is_err());
        assert_eq!(upstream.request_count(), before);
        let none = send(None).await;
        assert_eq!(none.is_ok(), auth == "optional", "without a certificate: the next rule");
        let shop = authority.certify("shop-7", vec![uri("spiffe://shops/7")]);
        assert_eq!(send(Some(&shop)).await.unwrap().status.as_u16(), 201);
        let records = gateway.records().await;
        let found = |prefix: &str| {
            records.iter().any(|record| record.id.caller.as_str().starts_with(prefix))
        };
        assert!(found("mtls:fingerprint:"), "{records:?}");
        gateway.assert_clean_shutdown().await;
    }
}

#[tokio::test]
async fn an_operator_finds_the_name_of_a_certificate() {
    let (authority, upstream) = (Authority::new(), Upstream::plain().await);
    for field in ["subject", "san", "fingerprint"] {
        let rule = format!("caller = [{{ mtls = \"{field}\" }}]");
        let setup = setup(&authority, &upstream, &rule, "required");
        let gateway = setup.start().await;
        let shop = authority.certify("shop-7", vec![uri("spiffe://shops/7")]);
        let file = setup.folder().join("shop.pem");
        // A client's file often has its chain too.
        fs::write(&file, shop.0.pem() + &authority.pem()).unwrap();
        let sent = authority.send(gateway.address(), Some(&shop), charge("a", ORDER)).await;
        assert_eq!(sent.unwrap().status.as_u16(), 201);
        let stored = gateway.records().await[0].id.caller.to_string();
        let (name, noted) = name_of(&setup, &["--certificate", "shop.pem"], "");
        assert_eq!(name, stored);
        assert!(noted.contains("nothing was verified"), "{noted}");
        gateway.assert_clean_shutdown().await;
    }
}
