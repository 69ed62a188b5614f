//! A running API listener for the tests.

use super::*;

pub(super) struct TestApi {
    pub(super) address: SocketAddr,
    pub(super) semel: Semel,
    pub(super) folder: TempDir,
    pub(super) reloads: Arc<AtomicU32>,
    pub(super) draining: watch::Sender<bool>,
    pub(super) stop: Option<oneshot::Sender<()>>,
    pub(super) serving: tokio::task::JoinHandle<()>,
}

impl TestApi {
    pub(super) async fn new(token: Option<&str>) -> Self {
        Self::on(MemoryStore::new(), token).await
    }

    pub(super) async fn on(store: impl Store, token: Option<&str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::at(listener, store, token)
    }

    pub(super) fn at(listener: TcpListener, store: impl Store, token: Option<&str>) -> Self {
        let tokens = token.map_or_else(ApiTokens::new, |token| {
            ApiTokens::new().with_operator(&BearerToken(token.to_owned()))
        });
        Self::with(listener, store, tokens, ClaimRules::default())
    }

    /// The API of a configuration, in which the variable of each secret holds `token-in-NAME`.
    pub(super) async fn configured(store: impl Store, source: &str) -> Self {
        let env = |name: &str| Some(secret_in(name));
        let overrides = Overrides::default();
        let config = Config::read(Some("semel.toml".as_ref()), source, &overrides, &env);
        let config = config.unwrap_or_else(|error| panic!("{error}"));
        let api = config.api.as_ref().unwrap();
        let mut tokens = ApiTokens::new();
        if let Some(operator) = &api.operator_token {
            tokens = tokens.with_operator(operator);
        }
        for token in &api.tokens {
            let secrets = token.secrets.iter().map(|secret| match secret {
                TokenSource::Env(_, secret) => secret,
                TokenSource::File(path) => panic!("{path:?}"),
            });
            tokens = tokens.with(token, secrets);
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let trusted_header = api.trusted_header.clone();
        if trusted_header.is_some() {
            tokens = tokens.restricting_records();
        }
        let shown = (Arc::new(ConfigSummary::new(&config)), trusted_header);
        Self::with_dashboard(listener, store, tokens, ClaimRules::new(&config), shown)
    }

    pub(super) fn with(
        listener: TcpListener,
        store: impl Store,
        tokens: ApiTokens,
        rules: ClaimRules,
    ) -> Self {
        let summary = Arc::new(ConfigSummary::default());
        Self::with_dashboard(listener, store, tokens, rules, (summary, None))
    }

    pub(super) fn with_dashboard(
        listener: TcpListener,
        store: impl Store,
        tokens: ApiTokens,
        rules: ClaimRules,
        (summary, trusted_header): (Arc<ConfigSummary>, Option<TrustedHeader>),
    ) -> Self {
        let port = listener.local_addr().unwrap().port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let folder = tempfile::tempdir().unwrap();
        let metrics = Metrics::new([]);
        let observer = EngineObserver::new(Arc::clone(&metrics));
        let semel = Semel::builder(store).observer(observer).build();
        let reloads = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&reloads);
        let (draining, is_draining) = watch::channel(false);
        let state = ApiState {
            semel: semel.clone(),
            metrics,
            tokens,
            service: ServiceState::new(ClaimSeal::new(&[7; 32], None).unwrap(), Arc::new(rules)),
            audit: AuditLog::at(folder.path().join("audit.jsonl")),
            reload: Arc::new(move |_| {
                let reloaded = match counted.fetch_add(1, Ordering::SeqCst) {
                    0 => Ok("2 routes".to_owned()),
                    _ => Err("semel.toml:3:1: no".to_owned()),
                };
                Box::pin(async { reloaded })
            }),
            draining: is_draining,
            auth_failure_log: LogThrottle::default(),
        };
        let dashboard = Dashboard::new(summary, trusted_header).unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(serve(listener, state, dashboard, 1, async {
            let _ = stopped.await;
        }));
        Self { address, semel, folder, reloads, draining, stop: Some(stop), serving }
    }

    pub(super) async fn ask(&self, request: http::Request<Full<Bytes>>) -> TestResponse {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let response = sender.send_request(request).await.unwrap();
        let cache = response.headers()["cache-control"].to_str().unwrap();
        assert!(cache == "no-store" || cache.contains("immutable"), "{cache}");
        TestResponse::read(response).await
    }

    pub(super) async fn get(&self, path: &str) -> TestResponse {
        let request = http::Request::get(path).header("host", "localhost");
        self.ask(request.body(Full::default()).unwrap()).await
    }

    pub(super) async fn get_as_operator(&self, path: &str) -> TestResponse {
        let request = http::Request::get(path)
            .header("host", "localhost")
            .header("authorization", format!("Bearer {TOKEN}"));
        self.ask(request.body(Full::default()).unwrap()).await
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> TestResponse {
        let request = http::Request::post(path)
            .header("host", "localhost")
            .header("authorization", format!("bearer {TOKEN}"))
            .header("content-type", "application/json; charset=utf-8");
        self.ask(request.body(body.to_string().into()).unwrap()).await
    }

    pub(super) async fn held(&self, key: &str) -> Fence {
        self.held_as(&id(key), Reason::Answered(503)).await
    }

    pub(super) async fn held_as(&self, id: &RecordId, reason: Reason) -> Fence {
        let mut claim = Claim::new(id.clone(), Fingerprint::of_parts("test", &[]), OWNER);
        claim.about = About::new("POST api.example.com/v1/charges");
        claim.node = NodeName::new("gateway-1");
        let store = self.semel.store();
        let claimed = store.claim(&claim).await.unwrap();
        let Claimed::Granted(Grant { fence, .. }) = claimed else { panic!("{claimed:?}") };
        store.finish(id, claim.claimant(fence), &Finish::hold(reason)).await.unwrap();
        fence
    }

    /// Completes a held record, as its owner's late answer does.
    pub(super) async fn complete(&self, key: &str, fence: Fence, answer: semel::core::Answer) {
        let by = Claimant::new(fence, OWNER);
        self.semel.store().finish(&id(key), by, &Finish::complete(answer)).await.unwrap();
    }

    pub(super) async fn seen(&self, key: &str) -> Option<Snapshot> {
        self.semel.store().get(&id(key)).await.unwrap()
    }

    pub(super) fn audit(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("audit.jsonl")).unwrap_or_default()
    }
}

/// The token that the variable of this name holds.
pub(super) fn secret_in(name: &str) -> String {
    format!("token-in-{name}-variable")
}
