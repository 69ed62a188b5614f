//! Exported traces: a collector receives what the gateway tells of a first attempt, of a request
//! that joins it, and of replays.

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest, common::v1::any_value::Value, trace::v1::Span,
};
use prost::Message as _;

use crate::{
    common::{Gate, Gateway, ORDER, Reply, Setup, Upstream, charge},
    operators::reaches,
};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const OTHER_TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// A request with the same key in a trace, below a span of the client.
fn traced(trace: &str, parent: &str) -> crate::common::ClientRequest {
    let mut request = charge("k", ORDER);
    let value = format!("00-{trace}-{parent}-01").parse().unwrap();
    request.headers_mut().insert("traceparent", value);
    request.headers_mut().insert("tracestate", "shop=7".parse().unwrap());
    request
}

/// What a collector has received.
struct ReceivedSpans(Vec<Span>);

impl ReceivedSpans {
    fn of(collector: &Upstream) -> Self {
        let requests = collector.requests();
        assert!(!requests.is_empty(), "the collector received nothing");
        let exports = requests.into_iter().map(|request| {
            assert_eq!(request.path, "/v1/traces");
            ExportTraceServiceRequest::decode(request.body).unwrap()
        });
        let resources = exports.flat_map(|export| export.resource_spans);
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        Self(scopes.flat_map(|scope| scope.spans).collect())
    }

    /// The only span of this name below this parent.
    #[track_caller]
    fn child(&self, name: &str, parent: &str) -> &Span {
        let is_child = |span: &&Span| span.name == name && hex(&span.parent_span_id) == parent;
        let found: Vec<&Span> = self.0.iter().filter(is_child).collect();
        let [span] = found[..] else { panic!("{name} below {parent}: {:#?}", self.0) };
        span
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An attribute of a span, as text.
fn attribute(span: &Span, name: &str) -> Option<String> {
    let attribute = span.attributes.iter().find(|attribute| attribute.key == name)?;
    let value = attribute.value.as_ref()?.value.as_ref()?;
    if let Value::IntValue(number) = value {
        return Some(number.to_string());
    }
    let Value::StringValue(text) = value else { panic!("{value:?}") };
    Some(text.clone())
}

/// The spans that a span is linked to, with their traces.
fn links(span: &Span) -> Vec<(String, String)> {
    span.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect()
}

async fn traced_gateway(upstream: &Upstream, collector: &Upstream) -> Gateway {
    let setup = Setup::new(&upstream.url())
        .environment("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url())
        .environment("OTEL_SERVICE_NAME", "payments-gateway");
    setup.start().await
}

#[tokio::test]
async fn a_first_attempt_a_join_and_a_replay_are_one_trace() {
    let gate = Gate::new();
    let blocked = gate.clone();
    let upstream = Upstream::start(move |request| Reply::created(request).blocked_on(&blocked));
    let (upstream, collector) = (upstream.await, Upstream::start(|_| Reply::new(200, "")).await);
    let gateway = traced_gateway(&upstream, &collector).await;
    let (first, joined) = tokio::join!(gateway.send(traced(TRACE, "00000000000000a1")), async {
        reaches(&gateway, "semel_in_flight", 1).await;
        tokio::join!(gateway.send(traced(TRACE, "00000000000000a2")), async {
            reaches(&gateway, "semel_waiting", 1).await;
            gate.open();
        })
        .0
    });
    assert_eq!((first.status.as_u16(), joined.body), (201, first.body.clone()));
    for (trace, parent) in [(TRACE, "00000000000000a3"), (OTHER_TRACE, "00000000000000a4")] {
        let replay = gateway.send(traced(trace, parent)).await;
        replay.assert_replay_of(&first);
        assert_eq!(replay.header("idempotency-trace"), None);
    }
    assert_eq!(first.header("idempotency-trace"), None);
    gateway.assert_clean_shutdown().await;
    let spans = ReceivedSpans::of(&collector);
    let owner = spans.child("request", "00000000000000a1");
    let owner_id = hex(&owner.span_id);
    assert_eq!(attribute(owner, "semel.outcome").as_deref(), Some("executed"));
    assert_eq!(attribute(owner, "http.response.status_code").as_deref(), Some("201"));
    assert_eq!((owner.kind, links(owner)), (2, vec![]), "a server, without links");
    let original = vec![(TRACE.to_owned(), owner_id.clone())];
    let later =
        [("a2", "joined", TRACE), ("a3", "replayed", TRACE), ("a4", "replayed", OTHER_TRACE)];
    for (parent, outcome, trace) in later {
        let span = spans.child("request", &format!("00000000000000{parent}"));
        assert_eq!(attribute(span, "semel.outcome").as_deref(), Some(outcome));
        assert_eq!((hex(&span.trace_id), links(span)), (trace.to_owned(), original.clone()));
    }
    let operation = hex(&spans.child("operation", &owner_id).span_id);
    for name in ["claim", "upstream", "record"] {
        assert_eq!(hex(&spans.child(name, &operation).trace_id), TRACE, "{name}");
    }
    assert_eq!(spans.0.len(), 8, "{:#?}", spans.0);
    let sent = &upstream.requests()[0];
    let span = hex(&spans.child("upstream", &operation).span_id);
    assert_eq!(sent.header("traceparent"), Some(&*format!("00-{TRACE}-{span}-01")));
    assert_eq!(sent.header("tracestate"), Some("shop=7"));
}

#[tokio::test]
async fn without_a_collector_the_trace_context_is_passed_on_as_it_came() {
    let upstream = Upstream::plain().await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    let first = gateway.send(traced(TRACE, "00000000000000a1")).await;
    gateway.send(traced(TRACE, "00000000000000a2")).await.assert_replay_of(&first);
    let sent = &upstream.requests()[0];
    let expected = format!("00-{TRACE}-00000000000000a1-01");
    assert_eq!(sent.header("traceparent"), Some(&*expected));
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_collector_that_is_away_delays_no_request() {
    let upstream = Upstream::plain().await;
    let collector = Upstream::start(|_| Reply::silent()).await;
    let gateway = traced_gateway(&upstream, &collector).await;
    let begun = tokio::time::Instant::now();
    for number in 0..20 {
        let answer = gateway.send(charge(&format!("k-{number}"), ORDER)).await;
        assert_eq!(answer.status.as_u16(), 201);
    }
    assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
    gateway.kill();
}
