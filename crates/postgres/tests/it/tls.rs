//! TLS with verified certificates.

use std::{fs, sync::Arc};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use semel_core::Store;
use semel_postgres::Options;
use semel_testkit::servers::Postgres;
use tokio_postgres::Client;

use crate::{
    fixture::connect,
    harness::{claim, eventually, granted},
};

type Issuer = CertifiedIssuer<'static, KeyPair>;

fn issuer() -> Issuer {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Gives the server a certificate for this name. Only the server may read the key, so it writes the
/// file itself.
async fn certify(admin: &Client, issuer: &Issuer, name: &str) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap();
    for (file, pem) in [("server.crt", certificate.pem()), ("server.key", key.serialize_pem())] {
        let lines = pem.trim().replace('\n', "'), ('");
        let write = format!("COPY (VALUES ('{lines}')) TO PROGRAM 'umask 077 && cat > {file}'");
        admin.batch_execute(&write).await.unwrap();
    }
    admin.batch_execute("ALTER SYSTEM SET ssl = on").await.unwrap();
    admin.query("SELECT pg_reload_conf()", &[]).await.unwrap();
    eventually(admin, "SELECT 1 FROM pg_settings WHERE name = 'ssl' AND setting = 'on'").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_full_accepts_only_the_server_that_the_url_names() {
    let server = Postgres::start(&[]);
    let admin = connect(&server.url("postgres")).await;
    let (ours, other) = (issuer(), issuer());
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, issuer: &Issuer| {
        let path = folder.path().join(name);
        fs::write(&path, issuer.pem()).unwrap();
        path.display().to_string()
    };
    let (trusted, foreign) = (path("ours.pem", &ours), path("other.pem", &other));
    let url = |settings: &str| format!("{}?{settings}", server.url("postgres"));
    let verified = |roots: &str| url(&format!("sslmode=verify-full&sslrootcert={roots}"));
    // Without a certificate there is nothing to verify.
    assert!(Options::parse(&verified(&trusted)).unwrap().connect().await.is_err());
    assert!(Options::parse(&url("sslmode=require")).unwrap().connect().await.is_err());

    certify(&admin, &ours, "127.0.0.1").await;
    let store = Options::parse(&verified(&trusted)).unwrap().connect().await.unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    granted(&store, &claim("key")).await;
    let encrypted = "SELECT 1 FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                     WHERE ssl AND application_name = 'semel'";
    assert!(!admin.query(encrypted, &[]).await.unwrap().is_empty());
    let refused = Options::parse(&verified(&foreign)).unwrap().connect().await.unwrap_err();
    assert!(refused.to_string().contains("certificate"), "{refused}");
    // `require` encrypts without verifying.
    Options::parse(&url("sslmode=require")).unwrap().connect().await.unwrap();

    certify(&admin, &ours, "db.example.org").await;
    let refused = Options::parse(&verified(&trusted)).unwrap().connect().await.unwrap_err();
    assert!(refused.to_string().contains("certificate"), "{refused}");
}
