//! TLS on both sides: versions by ALPN, certificates that change, authorities that are trusted.

use std::{fs, net::SocketAddr, sync::Arc, time::Duration};

use http::{Response, Version};
use rustls_pki_types::CertificateDer;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::mpsc,
};

use crate::{
    authority::{Authority, Identity},
    client::Client,
    common::{Gateway, Setup, Upstream, text},
    soon,
};

const TLS: &str = "tls = { certificate = \"cert.pem\", key = \"key.pem\" }";

/// A gateway whose clients come by TLS.
fn with_tls(setup: Setup, identity: &Identity) -> Setup {
    identity.install(setup.folder());
    setup.gateway(TLS)
}

/// Tells the version and what else it heard.
async fn telling() -> Upstream {
    Upstream::serving(|request| {
        let proto = request.headers()["x-forwarded-proto"].to_str().unwrap();
        let heard = format!("{:?} {proto}", request.version());
        async { Response::new(text(heard)) }
    })
    .await
}

#[tokio::test]
async fn a_client_by_tls_chooses_its_version() {
    let authority = Authority::new();
    let upstream = telling().await;
    let gateway =
        with_tls(Setup::at(upstream.address()), &authority.certify("localhost")).start().await;
    for (protocols, version) in [
        (&["http/1.1"][..], Version::HTTP_11),
        (&["h2"], Version::HTTP_2),
        (&["http/1.1", "h2"], Version::HTTP_2),
        (&[], Version::HTTP_11),
    ] {
        let stream = authority.connect(gateway.address(), protocols).await;
        let mut client = Client::over(stream, version == Version::HTTP_2).await;
        let answer = client.get("/").await;
        assert_eq!((answer.version, answer.text()), (version, "HTTP/1.1 https"));
        let key = format!("k{protocols:?}").replace(' ', "").replace(['"', ','], "-");
        let first = client.post("/charges", &key, "{}").await;
        let again = client.post("/charges", &key, "{}").await;
        assert_eq!((first.status.as_u16(), again.is_replayed()), (200, true));
        assert_eq!(first.body, again.body);
    }
    assert_eq!(upstream.request_count(), 8);
}

#[tokio::test]
async fn a_plaintext_request_to_a_tls_listener_is_not_served() {
    let authority = Authority::new();
    let upstream = telling().await;
    let gateway =
        with_tls(Setup::at(upstream.address()), &authority.certify("localhost")).start().await;
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = soon(stream.read_to_end(&mut answer)).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    assert_eq!(upstream.request_count(), 0);
}

#[tokio::test]
async fn a_handshake_that_stalls_comes_to_an_end() {
    let authority = Authority::new();
    let upstream = telling().await;
    let setup = with_tls(Setup::at(upstream.address()), &authority.certify("localhost"));
    let gateway = setup.tables("[limits]\nheader_timeout = \"2s\"").start().await;
    // Nothing at all, and the beginning of a handshake.
    for begun in [&b""[..], b"\x16\x03\x01\x02\x00\x01"] {
        let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
        stream.write_all(begun).await.unwrap();
        let mut rest = Vec::new();
        let _ = soon(stream.read_to_end(&mut rest)).await;
    }
    let stream = authority.connect(gateway.address(), &[]).await;
    assert_eq!(Client::over(stream, false).await.get("/").await.status, 200);
}

/// The certificate that a new connection is shown.
async fn shown(authority: &Authority, address: SocketAddr) -> CertificateDer<'static> {
    let stream = authority.connect(address, &[]).await;
    stream.get_ref().1.peer_certificates().unwrap()[0].clone()
}

async fn shows(authority: &Authority, gateway: &Gateway, identity: &Identity) {
    soon(async {
        while shown(authority, gateway.address()).await != *identity.der() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

async fn says(gateway: &Gateway, what: &str) {
    crate::wait_until(|| gateway.log().contains(what)).await;
}

#[tokio::test]
async fn a_changed_certificate_is_used_for_the_next_connection() {
    let authority = Authority::new();
    let upstream = Upstream::counting().await;
    let first = authority.certify("localhost");
    let setup = with_tls(Setup::at(upstream.address()), &first);
    let folder = setup.folder().to_owned();
    let gateway = setup.start().await;
    let mut old = Client::over(authority.connect(gateway.address(), &[]).await, false).await;
    assert_eq!(shown(&authority, gateway.address()).await, *first.der());

    let second = authority.certify("localhost");
    second.install(&folder);
    shows(&authority, &gateway, &second).await;

    // An invalid file changes nothing and is logged.
    fs::write(folder.join("cert.pem"), "no certificate").unwrap();
    says(&gateway, "cannot use the changed certificate").await;
    assert_eq!(shown(&authority, gateway.address()).await, *second.der());

    // Nor does a certificate whose key is another's.
    let third = authority.certify("localhost");
    let fourth = authority.certify("localhost");
    third.install(&folder);
    shows(&authority, &gateway, &third).await;
    let key = fs::read(folder.join("key.pem")).unwrap();
    fourth.install(&folder);
    fs::write(folder.join("key.pem"), key).unwrap();
    says(&gateway, "does not belong to").await;
    fourth.install(&folder);
    shows(&authority, &gateway, &fourth).await;

    // Who was there before goes on.
    assert_eq!(old.get("/").await.text(), "run 1");
}

/// In front of an upstream by TLS that this authority vouches for.
fn trusting(authority: &Authority, upstream: &Upstream, host: &str, more: &str) -> Setup {
    let url = format!("https://{host}:{}", upstream.address().port());
    let setup = Setup::upstream(format_args!("{{ url = \"{url}\", ca = \"ca.pem\"{more} }}"));
    authority.write(&setup.folder().join("ca.pem"));
    setup
}

#[tokio::test]
async fn an_upstream_by_tls_is_spoken_to_in_the_version_that_both_can() {
    let authority = Authority::new();
    for (offered, more, heard) in [
        (&["h2", "http/1.1"][..], "", "HTTP/2.0 http"),
        (&["http/1.1"], "", "HTTP/1.1 http"),
        (&[], "", "HTTP/1.1 http"),
        (&["h2", "http/1.1"], ", protocol = \"http1\"", "HTTP/1.1 http"),
        (&["h2", "http/1.1"], ", protocol = \"http2\"", "HTTP/2.0 http"),
    ] {
        let acceptor = authority.certify("127.0.0.1").acceptor(offered);
        let upstream = Upstream::serving_tls(acceptor, |request| {
            let proto = request.headers()["x-forwarded-proto"].to_str().unwrap();
            let heard = format!("{:?} {proto}", request.version());
            async { Response::new(text(heard)) }
        })
        .await;
        let gateway = trusting(&authority, &upstream, "127.0.0.1", more).start().await;
        let mut client = Client::http1(gateway.address()).await;
        assert_eq!(client.get("/").await.text(), heard);
        let first = client.post("/charges", "k", "{}").await;
        let again = client.post("/charges", "k", "{}").await;
        assert_eq!((first.text(), again.text()), (heard, heard));
        assert!(again.is_replayed());
        assert_eq!((upstream.request_count(), upstream.connections()), (2, 1));
    }
}

#[tokio::test]
async fn an_upstream_that_cannot_prove_its_name_gets_nothing() {
    let (authority, untrusted) = (Authority::new(), Authority::new());
    for (identity, name) in [
        (untrusted.certify("127.0.0.1"), "an authority that is not trusted"),
        (authority.certify("elsewhere.example"), "another name"),
    ] {
        let acceptor = identity.acceptor(&["http/1.1"]);
        let upstream =
            Upstream::serving_tls(acceptor, |_| async { Response::new(text("charged")) }).await;
        let gateway = trusting(&authority, &upstream, "127.0.0.1", "").start().await;
        let mut client = Client::http1(gateway.address()).await;
        // Released each time: the next gets the same answer, and not `outcome-unknown`.
        for _ in 0..3 {
            let answer = client.post("/charges", "k", "{}").await;
            assert_eq!(answer.outcome(), (502, Some("upstream-unreachable")), "{name}");
        }
        assert_eq!(upstream.connections(), 3, "{name}");
        assert_eq!(upstream.request_count(), 0, "{name}");
    }
}

#[tokio::test]
async fn an_upstream_that_proves_its_name_later_counts_the_attempt_as_the_first() {
    let (authority, untrusted) = (Authority::new(), Authority::new());
    // The same port shows an untrusted certificate first and then its own.
    let wrong = untrusted.certify("127.0.0.1").acceptor(&["http/1.1"]);
    let right = authority.certify("127.0.0.1").acceptor(&["http/1.1"]);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let url = format!("https://{address}");
    let setup = Setup::upstream(format_args!("{{ url = \"{url}\", ca = \"ca.pem\" }}"));
    authority.write(&setup.folder().join("ca.pem"));
    let gateway = setup.start().await;
    let heard = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        assert!(wrong.accept(stream).await.is_err());
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = right.accept(stream).await.unwrap();
        let mut heard = Vec::new();
        while !heard.ends_with(b"{}") {
            stream.read_buf(&mut heard).await.unwrap();
        }
        stream.write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        stream.flush().await.unwrap();
        String::from_utf8(heard).unwrap().to_lowercase()
    });
    let mut client = Client::http1(gateway.address()).await;
    assert_eq!(client.post("/charges", "k", "{}").await.status, 502);
    assert_eq!(client.post("/charges", "k", "{}").await.status, 201);
    let heard = soon(heard).await.unwrap();
    assert!(heard.contains("\r\nidempotency-attempt: 1\r\n"), "{heard}");
}

#[tokio::test]
async fn an_upstream_whose_handshake_stalls_was_never_reached() {
    let authority = Authority::new();
    let listener = Arc::new(tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap());
    let url = format!("https://{}", listener.local_addr().unwrap());
    let setup = Setup::upstream(format_args!(
        "{{ url = \"{url}\", ca = \"ca.pem\", connect_timeout = \"300ms\" }}"
    ));
    authority.write(&setup.folder().join("ca.pem"));
    let gateway = setup.start().await;
    let mut client = Client::http1(gateway.address()).await;
    for _ in 0..2 {
        let answer = client.post("/charges", "k", "{}").await;
        assert_eq!(answer.outcome(), (502, Some("upstream-unreachable")));
    }
}

#[tokio::test]
async fn a_connection_by_tls_that_the_upstream_closed_is_never_used() {
    const ROUNDS: usize = 60;
    let authority = Authority::new();
    let acceptor = authority.certify("127.0.0.1").acceptor(&["http/1.1"]);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let setup = Setup::upstream(format_args!("{{ url = \"{url}\", ca = \"ca.pem\" }}"));
    authority.write(&setup.folder().join("ca.pem"));
    let gateway = setup.start().await;
    let (sender, mut closed) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        for number in 0..ROUNDS as u64 {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = acceptor.accept(stream).await.unwrap();
            let mut heard = Vec::new();
            while !heard.ends_with(b"{}") {
                stream.read_buf(&mut heard).await.unwrap();
            }
            let answer = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(answer).await.unwrap();
            stream.flush().await.unwrap();
            tokio::time::sleep(Duration::from_millis(number % 12)).await;
            // With the alert that says so, and without.
            if number % 2 == 0 {
                stream.shutdown().await.unwrap();
            }
            drop(stream);
            let _ = sender.send(());
        }
    });
    let mut client = Client::http1(gateway.address()).await;
    for number in 0..ROUNDS {
        let answer = client.post("/charges", &format!("k{number}"), "{}").await;
        assert_eq!(answer.outcome(), (201, None), "round {number}");
        soon(closed.recv()).await.unwrap();
    }
}
