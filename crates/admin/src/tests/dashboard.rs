//! The dashboard over a real socket, as a browser without JavaScript uses it.

use std::io::Write as _;

use semel::core::Answer;

use super::*;

/// Tokens of each role; reading needs one.
const TOKENS: &str = "[gateway]\nupstream = \"http://127.0.0.1:1\"\n\
    [[api.token]]\nname = \"ops\"\nrole = \"operator\"\nsecret_env = \"OPS\"\n\
    [[api.token]]\nname = \"watch\"\nrole = \"viewer\"\nsecret_env = \"WATCH\"\n\
    [[api.token]]\nname = \"jobs\"\nrole = \"app\"\nsecret_env = \"JOBS\"\n";

/// A number that a double cannot hold.
const EXACT: &str = "{\"id\":9007199254740993,\"amount\":1.0}";

/// A browser: it keeps the cookie, and says that it follows a link or sends a form of its own page.
struct Browser<'a> {
    api: &'a TestApi,
    cookie: Option<String>,
    headers: Vec<(&'static str, String)>,
}

impl<'a> Browser<'a> {
    fn new(api: &'a TestApi) -> Self {
        Self { api, cookie: None, headers: Vec::new() }
    }

    async fn signed_in(api: &'a TestApi, variable: &str, user: &str) -> Self {
        let mut browser = Self::new(api);
        let token = secret_in(variable);
        let answer = browser.submit("/sign-in", &[("user", user), ("token", &token)]).await;
        assert_eq!(answer.status, 303, "{answer:?}");
        browser
    }

    async fn send(&mut self, request: http::request::Builder, body: String) -> TestResponse {
        let mut request = request.header("host", "localhost");
        if let Some(cookie) = &self.cookie {
            request = request.header("cookie", cookie);
        }
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let answer = self.api.ask(request.body(body.into()).unwrap()).await;
        if let Some(set) = answer.header("set-cookie") {
            assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict"), "{set}");
            self.cookie = set.split(';').next().map(str::to_owned);
        }
        answer
    }

    async fn open(&mut self, path: &str) -> TestResponse {
        self.send(http::Request::get(path), String::new()).await
    }

    /// The text of a page that is shown.
    async fn page(&mut self, path: &str) -> String {
        let answer = self.open(path).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.text().to_owned()
    }

    async fn submit(&mut self, path: &str, fields: &[(&str, &str)]) -> TestResponse {
        let fields: Vec<String> =
            fields.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        let request = http::Request::post(path)
            .header("content-type", "application/x-www-form-urlencoded")
            .header("sec-fetch-site", "same-origin");
        self.send(request, fields.join("&")).await
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// The value of a hidden field of a page.
fn hidden(page: &str, name: &str) -> String {
    let field = format!("name=\"{name}\" value=\"");
    let (_, rest) = page.split_once(&field).unwrap_or_else(|| panic!("no {name}: {page}"));
    rest.split('"').next().unwrap().to_owned()
}

async fn completed(api: &TestApi, key: &str) -> Fence {
    let fence = api.held(key).await;
    let body = EXACT.as_bytes().to_vec().into();
    let response = StoredResponse { status: 201, body, ..StoredResponse::default() };
    api.complete(key, fence, Answer::response(&response)).await;
    fence
}

fn record_of(key: &str) -> String {
    format!("/record?scope=payments&caller=shop-7&key={key}")
}

#[tokio::test]
async fn pages_need_a_sign_in_and_lead_back_to_where_it_was_asked_for() {
    let api = TestApi::configured(MemoryStore::new(), TOKENS).await;
    let mut browser = Browser::new(&api);
    for path in ["/", "/records", "/held", "/record?scope=s&caller=&key=k", "/events", "/store"] {
        let answer = browser.open(path).await;
        assert_eq!(answer.status, 303, "{path}");
        assert!(answer.header("location").unwrap().starts_with("sign-in?next="), "{path}");
    }
    let asked = browser.open("/records?key=a%2Fb&state=held").await;
    let location = asked.header("location").unwrap().to_owned();
    assert_eq!(location, "sign-in?next=records%3Fkey%3Da%252Fb%26state%3Dheld");
    let form = browser.page(&format!("/{location}")).await;
    let next = hidden(&form, "next").replace("&amp;", "&");
    let token = secret_in("WATCH");
    let answer = browser.submit("/sign-in", &[("token", &token), ("next", &next)]).await;
    assert_eq!(answer.header("location"), Some("records?key=a%2Fb&state=held"));
    assert!(browser.page("/records").await.contains("(viewer)"));
    // An address of another site is no page.
    let evil = [("token", &*token), ("next", "//evil.example")];
    assert_eq!(browser.submit("/sign-in", &evil).await.header("location"), Some("./"));
    let form = hidden(&browser.page("/records").await, "form");
    assert_eq!(browser.submit("/sign-out", &[("form", &form)]).await.status, 303);
    assert_eq!(browser.open("/records").await.status, 303);
}

#[tokio::test]
async fn a_wrong_token_is_refused_and_repeated_failures_are_throttled() {
    let api = TestApi::configured(MemoryStore::new(), TOKENS).await;
    let mut browser = Browser::new(&api);
    let app = secret_in("JOBS");
    assert_eq!(browser.submit("/sign-in", &[("token", &app)]).await.status, 403);
    for _ in 0..10 {
        assert_eq!(browser.submit("/sign-in", &[("token", "a-wrong-token")]).await.status, 401);
    }
    let refused = browser.submit("/sign-in", &[("token", "another-wrong-token")]).await;
    assert!(refused.status == 429 && browser.cookie.is_none(), "{refused:?}");
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    // Another user behind the same proxy can still sign in.
    let token = secret_in("OPS");
    assert_eq!(browser.submit("/sign-in", &[("token", &token)]).await.status, 303);
    assert!(browser.cookie.is_some());
}

#[tokio::test]
async fn every_page_forbids_foreign_content_and_frames() {
    let api = TestApi::configured(MemoryStore::new(), TOKENS).await;
    api.held("k").await;
    let mut browser = Browser::signed_in(&api, "OPS", "zoe").await;
    let resolve = record_of("k").replace("record", "resolve");
    let paths = ["/", "/records", "/held", "/routes", "/store", "/resolve-all", "/sign-in"];
    for path in paths.into_iter().map(str::to_owned).chain([record_of("k"), resolve]) {
        let answer = browser.open(&path).await;
        assert_eq!(answer.status, 200, "{path}");
        let policy = answer.header("content-security-policy").unwrap();
        for rule in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"] {
            assert!(policy.contains(rule), "{path}: {policy}");
        }
        let text = answer.text();
        for inline in ["style=", "<style", "onclick", "src=\"http", "href=\"http", "url("] {
            assert!(!text.contains(inline), "{path}: {inline}");
        }
        assert!(!text.contains("href=\"/") && !text.contains("action=\"/"), "{path}: relative");
    }
    let error = browser.open("/resolve?scope=s&caller=&key=absent").await;
    assert!(error.header("content-security-policy").is_some() && error.status == 404);
}

/// What a browser loads for the largest pages, as it would be compressed.
#[tokio::test]
async fn a_page_weighs_at_most_60_kb_with_its_assets() {
    let api = TestApi::configured(MemoryStore::new(), TOKENS).await;
    for number in 0..120 {
        api.held(&format!("a-key-of-the-usual-length-{number:036}")).await;
    }
    let mut browser = Browser::signed_in(&api, "OPS", "zoe").await;
    for path in ["/", "/records?state=held", "/held", "/resolve-all"] {
        let page = browser.page(path).await;
        let mut all = page.clone();
        for asset in ["dashboard.css", "dashboard.js", "icon.svg"] {
            let (_, rest) = page.split_once(asset).unwrap_or_else(|| panic!("{asset}: {page}"));
            let query = rest.split('"').next().unwrap();
            let asset = browser.open(&format!("/{asset}{query}")).await;
            assert!(asset.header("cache-control").unwrap().contains("immutable"), "{asset:?}");
            all.push_str(asset.text());
        }
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(all.as_bytes()).unwrap();
        let compressed = gzip.finish().unwrap().len();
        assert!(compressed < 60_000, "{path}: {compressed} bytes, {} of HTML", page.len());
        // It is not sent compressed, so this is what counts on a slow line.
        assert!(page.len() < 60_000, "{path}: {} bytes of HTML", page.len());
    }
}

#[tokio::test]
async fn a_charge_is_found_by_its_key_and_explained_in_words() {
    let api = TestApi::configured(MemoryStore::new(), TOKENS).await;
    completed(&api, "order-7").await;
    let mut browser = Browser::signed_in(&api, "WATCH", "ada").await;
    // As a client writes it.
    let found = browser.page("/records?key=%22order-7%22").await;
    let link = "record?scope=payments&amp;caller=shop-7&amp;key=order-7";
    assert!(found.contains(link), "{found}");
    let record = browser.page(&record_of("order-7")).await;
    assert!(record.contains("It ran once"), "{record}");
    assert!(record.contains("Every repeat gets its recorded answer"), "{record}");
    assert!(record.contains("Completed with status 201"), "{record}");
    assert!(!record.contains("9007199254740993"), "the answer is behind a click");
    let by_time = browser.page("/records?since=1h&until=0s&state=completed").await;
    assert!(by_time.contains(link), "{by_time}");
    let none = browser.page("/records?key=order-8").await;
    assert!(none.contains("There is no record with this key"), "{none}");
    let wrong = browser.open("/records?since=yesterday").await;
    assert!(wrong.status == 400 && wrong.text().contains("`since`"), "{wrong:?}");
    assert_eq!(browser.open(&record_of("order-8")).await.status, 404);
    assert_eq!(browser.open("/record?scope=&caller=&key=").await.status, 400);
}

#[tokio::test]
async fn reading_an_answer_is_audited_and_shows_numbers_exactly() {
    let api = TestApi::configured(MemoryStore::new(), TOKENS).await;
    completed(&api, "order-7").await;
    let mut browser = Browser::signed_in(&api, "OPS", "zoe").await;
    let page = browser.page(&record_of("order-7")).await;
    let (_, form) = page.split_once("action=\"answer#answer\"").unwrap();
    let form = hidden(form, "form");
    let fields =
        [("scope", "payments"), ("caller", "shop-7"), ("key", "order-7"), ("form", &*form)];
    assert_eq!(browser.submit("/answer", &fields[..3]).await.status, 403, "without its token");
    assert_eq!(api.audit(), "");
    let shown = browser.submit("/answer", &fields).await;
    assert!(shown.status == 200, "{shown:?}");
    assert!(shown.text().contains("9007199254740993,\n  &quot;amount&quot;: 1.0"), "{shown:?}");
    let audit = api.audit();
    assert!(audit.contains("\"act\":\"read-answer\"") && audit.contains("zoe"), "{audit}");
    assert!(browser.page(&record_of("order-7")).await.contains("Answer read"));
    let mut viewer = Browser::signed_in(&api, "WATCH", "ada").await;
    assert!(viewer.page(&record_of("order-7")).await.contains("Operators can show it"));
    assert_eq!(viewer.submit("/answer", &fields).await.status, 403);
}

#[tokio::test]
async fn a_held_record_is_resolved_both_ways_and_the_timeline_says_who_and_why() {
    let api = TestApi::configured(MemoryStore::new(), TOKENS).await;
    let mut browser = Browser::signed_in(&api, "OPS", "zoe").await;
    for (key, to) in [("freed", "released"), ("done", "completed")] {
        api.held(key).await;
        let path = record_of(key).replace("record", "resolve");
        let form = browser.page(&path).await;
        let (token, fence) = {
            let (_, form) = form.split_once("action=\"resolve\"").unwrap();
            (hidden(form, "form"), hidden(form, "fence"))
        };
        let who = [("scope", "payments"), ("caller", "shop-7"), ("key", key), ("fence", &*fence)];
        let said = [
            ("to", to),
            ("form", &*token),
            ("status", "201"),
            ("content_type", "application/json"),
            ("body", EXACT),
        ];
        let unsaid = browser.submit("/resolve", &[&who[..], &said].concat()).await;
        assert!(unsaid.text().contains("Say why"), "{unsaid:?}");
        let why = [("why", "the bank <says> so")];
        let done = browser.submit("/resolve", &[&who[..], &said, &why].concat()).await;
        assert_eq!(done.status, 303, "{done:?}");
        let page = browser.page(&format!("/{}", done.header("location").unwrap())).await;
        assert!(page.contains(&format!("Done: resolved as {to}")), "{page}");
        assert!(page.contains("by zoe (dashboard, by token ops"), "{page}");
        let is_stated = page.contains("An operator said that it took effect");
        assert_eq!(is_stated, to == "completed", "{page}");
        assert!(page.contains("the bank &lt;says&gt; so"), "{page}");
        // The fence that was seen has passed.
        let again = browser.submit("/resolve", &[&who[..], &said, &why].concat()).await;
        assert_eq!(again.status, 409, "{again:?}");
    }
    let done = api.seen("done").await.unwrap().state;
    let StateView::Completed { answer, .. } = done else { panic!("{done:?}") };
    let semel::core::Content::Response(answer) = answer.read().unwrap() else { panic!() };
    assert_eq!((answer.status, &*answer.body), (201, EXACT.as_bytes()));
    assert!(matches!(api.seen("freed").await.unwrap().state, StateView::Released { .. }));
}

#[tokio::test]
async fn all_that_match_are_resolved_after_a_preview_and_nothing_else() {
    let api = TestApi::configured(MemoryStore::new(), TOKENS).await;
    for number in 0..230 {
        api.held(&format!("k{number}")).await;
    }
    let other = requests::record_id("signup", "shop-7", "other").unwrap();
    api.held_as(&other, Reason::Answered(503)).await;
    let mut browser = Browser::signed_in(&api, "OPS", "zoe").await;
    let preview = browser.page("/resolve-all?scope=payments&reason=answered").await;
    assert!(preview.contains("Resolve 230 records"), "{preview}");
    assert!(preview.contains("it happens twice"), "what will follow: {preview}");
    let (_, form) = preview.split_once("action=\"resolve-all\"").unwrap();
    let (token, id) = (hidden(form, "form"), hidden(form, "preview"));
    api.held("later").await;
    let seen = api.seen("k7").await.unwrap().fence;
    api.complete("k7", seen, Answer::not_retained(201)).await;
    let said = [("to", "released"), ("form", &*token), ("preview", &*id), ("why", "rolled back")];
    let mut other_operator = Browser::signed_in(&api, "OPS", "ada").await;
    assert_eq!(other_operator.submit("/resolve-all", &said).await.status, 403, "not her form");
    assert!(browser.submit("/resolve-all", &said[..3]).await.text().contains("Say why"));
    let done = browser.submit("/resolve-all", &said).await;
    assert!(done.text().contains("229 records resolved"), "{done:?}");
    assert!(done.text().contains("1 record left alone"), "{done:?}");
    assert_eq!(browser.submit("/resolve-all", &said).await.status, 409, "only once");
    let state = async |key: &str| api.seen(key).await.unwrap().state.name().as_str();
    assert_eq!([state("k229").await, state("k7").await], ["released", "completed"]);
    assert_eq!(state("later").await, "held");
    let other = api.semel.store().get(&other).await.unwrap().unwrap();
    assert_eq!(other.state.name().as_str(), "held");
    assert_eq!(api.audit().matches("rolled back").count(), 2 * 230);
}

#[tokio::test]
async fn a_viewer_changes_nothing() {
    let api = TestApi::configured(MemoryStore::new(), TOKENS).await;
    let fence = api.held("k").await.to_string();
    let mut operator = Browser::signed_in(&api, "OPS", "zoe").await;
    let page = operator.page(&record_of("k").replace("record", "resolve")).await;
    let form = hidden(page.split_once("action=\"resolve\"").unwrap().1, "form");
    let mut viewer = Browser::signed_in(&api, "WATCH", "ada").await;
    let fields = [
        ("scope", "payments"),
        ("caller", "shop-7"),
        ("key", "k"),
        ("fence", &*fence),
        ("to", "released"),
        ("why", "because"),
        ("form", &*form),
    ];
    assert_eq!(viewer.submit("/resolve", &fields).await.status, 403);
    assert_eq!(viewer.submit("/resolve-all", &fields).await.status, 403);
    assert_eq!(viewer.open("/resolve-all").await.status, 403);
    assert!(!viewer.page("/held").await.contains("resolve-all"));
    // Another site may not use the session of an operator, whatever it knows.
    operator.headers.push(("sec-fetch-site", "cross-site".to_owned()));
    let request =
        http::Request::post("/resolve").header("content-type", "application/x-www-form-urlencoded");
    let answer = operator.send(request, String::new()).await;
    assert_eq!(answer.status, 403);
    assert_eq!(api.seen("k").await.unwrap().state, StateView::Held);
    assert_eq!(api.audit(), "");
}

#[tokio::test]
async fn a_proxy_names_the_user_in_a_header_that_counts_from_its_address_only() {
    let source = |from: &str| {
        format!(
            "[gateway]\nupstream = \"http://127.0.0.1:1\"\n[api]\ntrusted_header = \
             {{ header = \"X-User\", from = \"{from}\", operators = \"zoe\" }}\n"
        )
    };
    let api = TestApi::configured(MemoryStore::new(), &source("127.0.0.1/32")).await;
    let fence = api.held("k").await.to_string();
    assert_eq!(Browser::new(&api).open("/held").await.status, 303, "without the header");
    assert_eq!(api.get("/v1/records").await.status, 401);
    let named = |user: &str| Browser {
        api: &api,
        cookie: None,
        headers: vec![("x-user", user.to_owned())],
    };
    assert!(named("ada").page("/held").await.contains("ada (viewer)"));
    assert_eq!(named("ada").open("/resolve-all").await.status, 403);
    let mut zoe = named("zoe");
    let page = zoe.page(&record_of("k").replace("record", "resolve")).await;
    let form = hidden(page.split_once("action=\"resolve\"").unwrap().1, "form");
    let fields = [
        ("scope", "payments"),
        ("caller", "shop-7"),
        ("key", "k"),
        ("fence", &*fence),
        ("to", "released"),
        ("why", "because"),
        ("who", "another name"),
        ("form", &*form),
    ];
    assert_eq!(named("ada").submit("/resolve", &fields).await.status, 403);
    assert_eq!(zoe.submit("/resolve", &fields).await.status, 303);
    assert!(api.audit().contains("zoe (dashboard, by x-user, from 127.0.0.1)"), "{}", api.audit());
    assert!(!api.audit().contains("another name"));
    let elsewhere = TestApi::configured(MemoryStore::new(), &source("10.0.0.0/8")).await;
    let headers = vec![("x-user", "zoe".to_owned())];
    let mut forged = Browser { api: &elsewhere, cookie: None, headers };
    assert_eq!(forged.open("/held").await.status, 303);
}

#[tokio::test]
async fn without_a_token_this_machine_may_read_and_not_change() {
    let api = TestApi::new(None).await;
    api.held("k").await;
    let mut browser = Browser::new(&api);
    let page = browser.page("/held").await;
    assert!(page.contains("Read-only") && !page.contains("resolve-all"), "{page}");
    assert_eq!(browser.open("/resolve-all").await.status, 403);
    assert!(browser.page("/sign-in").await.contains("No token is configured"));
    let open = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let api = TestApi::at(open, MemoryStore::new(), None);
    let refused = Browser::new(&api).open("/records").await;
    assert!(refused.status == 403 && refused.text().contains("operator_token_env"), "{refused:?}");
}

#[tokio::test]
async fn the_numbers_arrive_while_they_change_and_end_with_the_server() {
    let api = TestApi::new(None).await;
    let mut stream = TcpStream::connect(api.address).await.unwrap();
    stream.write_all(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut text = String::new();
    let mut read_until = async |wanted: &str| {
        let mut bytes = vec![0; 16 << 10];
        while !text.contains(wanted) {
            let read = stream.read(&mut bytes).await.unwrap();
            assert!(read > 0, "the stream ended: {text}");
            text.push_str(std::str::from_utf8(&bytes[..read]).unwrap_or_default());
        }
        text.clear();
    };
    read_until("No duplicate execution had to be prevented").await;
    let scope = semel::core::Scope::new("payments").unwrap();
    api.semel.report(&scope, semel::EventKind::Replayed(semel::ReplaySource::Cache));
    read_until("1 duplicate execution").await;
    api.draining.send(true).unwrap();
    read_until("0\r\n\r\n").await;
    assert_eq!(Browser::new(&api).open("/events").await.status, 503);
}

#[tokio::test]
async fn routes_and_store_are_shown_in_words() {
    let source =
        format!("{TOKENS}[[route]]\nmatch = \"POST /v1/payments/**\"\nscope = \"payments\"\n");
    let api = TestApi::configured(MemoryStore::new(), &source).await;
    let mut browser = Browser::signed_in(&api, "WATCH", "").await;
    let routes = browser.page("/routes").await;
    for words in ["POST /v1/payments/**", "waits up to 10s", "held until an operator resolves it"] {
        assert!(routes.contains(words), "{words}: {routes}");
    }
    let store = browser.page("/store").await;
    assert!(store.contains("The store answers") && store.contains("sqlite:semel.db"), "{store}");
}
