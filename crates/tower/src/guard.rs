//! One guarded request, from its key to its answer.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{Arc, Weak},
    task::Poll,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, header, request::Parts};
use semel::{
    EventKind, Lease, Operation, Pending,
    core::{
        About, Caller, Captured, ExecutionResult, Policy, Problem, RecordId, Reply, Scope, Verdict,
    },
};
use tower_service::Service;

use crate::{
    BoxError, Served, ServedOutcome, Subject,
    body::{Body, Whole},
    caller::Identified,
    capture::{self, Route},
    config::Config,
    future::passed,
    grpc,
    hand::{Hand, Handed},
    header::{GRPC_ACCEPT_ENCODING, IDEMPOTENCY_GUARDED},
    host,
    key::{Found, InRequest, Need},
    refusal::Refusal,
    reply::{Origin, Voice},
    request::{self, Plain},
};

/// A request that has a key, or may have one in its body, or must be signed.
///
/// What is alive while something is awaited is copied whenever the future moves, so as little as
/// can be is: the steps between are plain functions.
#[derive(Debug)]
pub(crate) struct Guard<S> {
    pub(crate) config: Arc<Config>,
    /// Ready, and used at most once.
    pub(crate) inner: S,
}

/// What becomes of a request once its body is here.
enum Prepared {
    Guarded(Guarded, Request<Whole>),
    /// It has no key and needs none.
    Unguarded(Request<Whole>),
}

/// What is known of a guarded request before it begins.
pub(crate) struct Guarded {
    pub(crate) operation: Operation,
    pub(crate) subject: Subject,
}

/// What is waited for.
enum Begun<F> {
    Operation { pending: Pending, hand: Arc<Hand>, id: Option<RecordId> },
    // Rare, and large.
    Unguarded(Pin<Box<F>>),
}

impl<S> Guard<S> {
    /// Answers a request.
    #[expect(clippy::manual_async_fn, reason = "an async fn would keep its arguments twice")]
    pub(crate) fn run<ReqB, ResB>(
        self,
        parts: Parts,
        body: ReqB,
        found: Found,
    ) -> impl Future<Output = Result<Response<Body<ResB>>, S::Error>> + Send
    where
        S: Service<Request<Body<ReqB>>, Response = Response<ResB>> + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        ReqB: http_body::Body<Data = Bytes> + Send + 'static,
        ReqB::Error: Into<BoxError>,
        ResB: http_body::Body<Data = Bytes> + Send + 'static,
        ResB::Error: Into<BoxError>,
    {
        async move {
            let config = Arc::clone(&self.config);
            let enclosed = parts.extensions.get::<Lease>().is_some();
            let voice = config.voice(&parts.headers);
            // Who may not pass need not be read; but what is signed proves who sent it, once it is
            // here.
            let caller = match &found {
                Found::Key(_) if config.signature.is_none() => {
                    config.callers.identify(&parts).map(Some)
                }
                Found::Key(_) | Found::Nothing | Found::AskBody(_) => Ok(None),
            };
            let caller = match caller {
                Ok(caller) => caller,
                Err(refusal) => return Ok(config.refuse(voice, &refusal)),
            };
            let counted = caller.as_ref().map(|identified| &identified.caller);
            let begun = match read(&config, counted, &parts, body).await {
                Ok(whole) => self.begin(parts, whole, found, caller, voice.grpc),
                Err(refusal) => Err(refusal),
            };
            match begun {
                Err(refusal) => Ok(config.refuse(voice, &refusal)),
                Ok(Begun::Operation { pending, hand, id }) => {
                    Ok(conclude(pending, hand, voice, id).await)
                }
                Ok(Begun::Unguarded(call)) => {
                    let warn = config.key.need() == Need::Warn;
                    config.semel.report(&config.scope, EventKind::Keyless);
                    Ok(passed(call.await?, warn.then_some(&*config), enclosed))
                }
            }
        }
    }

    /// Passes a request on that is not guarded here, once it is verified.
    pub(crate) async fn pass<ReqB, ResB>(
        mut self,
        parts: Parts,
        body: ReqB,
    ) -> Result<Response<Body<ResB>>, S::Error>
    where
        S: Service<Request<Body<ReqB>>, Response = Response<ResB>>,
        ReqB: http_body::Body<Data = Bytes>,
        ReqB::Error: Into<BoxError>,
    {
        let config = Arc::clone(&self.config);
        let enclosed = parts.extensions.get::<Lease>().is_some();
        let voice = config.voice(&parts.headers);
        let read = read(&config, None, &parts, body).await;
        let verified = read.and_then(|whole| {
            verify(&config, &parts.headers, whole.data())?;
            Ok(Request::from_parts(parts, Body::whole(whole)))
        });
        match verified {
            Ok(request) => Ok(passed(self.inner.call(request).await?, None, enclosed)),
            Err(refusal) => Ok(config.refuse(voice, &refusal)),
        }
    }

    fn begin<ReqB, ResB>(
        mut self,
        parts: Parts,
        whole: Whole,
        found: Found,
        caller: Option<Identified>,
        grpc: bool,
    ) -> Result<Begun<S::Future>, Refusal>
    where
        S: Service<Request<Body<ReqB>>, Response = Response<ResB>> + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        ReqB: Send + 'static,
        ResB: http_body::Body<Data = Bytes> + Send + 'static,
        ResB::Error: Into<BoxError>,
    {
        match prepare(&self.config, parts, whole, found, caller)? {
            Prepared::Unguarded(request) => {
                Ok(Begun::Unguarded(Box::pin(self.inner.call(request.map(Body::whole)))))
            }
            Prepared::Guarded(Guarded { operation, subject }, mut request) => {
                request.extensions_mut().insert(subject);
                let hand = Arc::new(Hand::default());
                // Weak: a client that is gone takes with it what was to be handed over.
                let client = Arc::downgrade(&hand);
                let policy = Arc::clone(&operation.policy);
                let semel = self.config.semel.clone();
                let id = self.config.served.then(|| operation.id.clone());
                let route = (self.config, policy, grpc);
                let (inner, request) = (self.inner, request.map(Body::whole));
                let execute = move |lease| execute(inner, request, lease, route, client);
                let pending = semel.begin(operation, execute);
                Ok(Begun::Operation { pending, hand, id })
            }
        }
    }
}

/// Reads the body of a request. How many are read at once is limited.
async fn read<B>(
    config: &Config,
    caller: Option<&Caller>,
    parts: &Parts,
    body: B,
) -> Result<Whole, Refusal>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut reading = pin!(request::read(&parts.headers, body, config.policy.request_bytes_max));
    // Most bodies have come with their head, and are read already.
    if let Poll::Ready(whole) = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await
    {
        return whole;
    }
    let _admission = match caller {
        Some(caller) => config.semel.admit(caller)?,
        // Who sent it is not known before all of it is here, so genuine or forged, what comes
        // slowly has a place of its own. There it takes none from what comes at once.
        None if config.signature.is_some() => config.semel.admit(&unverified(&config.scope))?,
        // Who sent it is not asked yet, but counts here.
        None => {
            let identified = config.callers.identify(parts);
            let identified = identified.unwrap_or_else(|_| Identified::anonymous());
            config.semel.admit(&identified.caller)?
        }
    };
    reading.await
}

/// Whoever sends what is still to be verified, to be counted: one for each scope, so that nobody
/// who is slow to one sender's inbox takes a place in another's.
fn unverified(scope: &Scope) -> Caller {
    Caller::new(&format!("unverified {scope}")).unwrap_or_else(|_| Caller::anonymous())
}

/// A request whose body is here, with what becomes of it.
fn prepare(
    config: &Config,
    parts: Parts,
    whole: Whole,
    found: Found,
    caller: Option<Identified>,
) -> Result<Prepared, Refusal> {
    let identify = |parts: &Parts| caller.map_or_else(|| config.callers.identify(parts), Ok);
    let guarded = guarded(config, &parts, whole.data(), found, identify)?;
    let request = Request::from_parts(parts, whole);
    Ok(match guarded {
        Some(guarded) => Prepared::Guarded(guarded, request),
        None => Prepared::Unguarded(request),
    })
}

/// Whether a request is signed, if it must be.
fn verify(config: &Config, headers: &HeaderMap, data: &[u8]) -> Result<(), Refusal> {
    config.signature.as_ref().map_or(Ok(()), |signature| signature.check(headers, data))
}

/// Everything between the body and the engine: the signature, the key if it is in the body, the
/// fingerprint. Nothing, if there is no key and need not be one.
pub(crate) fn guarded(
    config: &Config,
    parts: &Parts,
    data: &[u8],
    found: Found,
    identify: impl FnOnce(&Parts) -> Result<Identified, Refusal>,
) -> Result<Option<Guarded>, Refusal> {
    verify(config, &parts.headers, data)?;
    let plain = Plain::of(&parts.headers, data, config.policy.request_bytes_max)?;
    let key = match found {
        Found::Key(key) => Some(InRequest { key, from_body: false }),
        Found::Nothing => None,
        Found::AskBody(_) if plain.opaque => return Err(unreadable()),
        Found::AskBody(from) => {
            config.key.ask_all(from, &parts.headers, &plain.kind, &plain.body)?
        }
    };
    let Some(InRequest { key, from_body }) = key else {
        return match config.key.need() {
            Need::Required => Err(config.key.missing(grpc::is_grpc(&parts.headers))),
            Need::Optional | Need::Warn => Ok(None),
        };
    };
    let Identified { caller, proven } = identify(parts)?;
    let host = host::of(parts, config.forwarded_host);
    let subject = config.subject.of(parts, host.as_deref(), &plain);
    let rule = config.fingerprint_for(from_body);
    let id = RecordId::new(config.scope.clone(), caller, key);
    let fingerprint = plain.fingerprint(parts, host.as_deref(), rule)?;
    let policy = Arc::clone(config.policy_for(from_body, proven));
    let former = config.former.ids(&id, parts);
    let mut operation = Operation::new(id, fingerprint, policy);
    operation.former = former;
    operation.about = About::new(&subject.about);
    let captured = subject.captured.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    operation.captured = Captured::new(captured);
    Ok(Some(Guarded { operation, subject }))
}

fn unreadable() -> Refusal {
    let detail = "the key stands in the body, whose Content-Encoding cannot be undone here; send \
                  it with gzip, with deflate or without any";
    Refusal::detailed(Problem::BodyMalformed, detail)
}

/// What is recorded must fit every client that may repeat the request.
fn ask_for_identity(headers: &mut HeaderMap) {
    let identity = HeaderValue::from_static("identity");
    if grpc::is_grpc(headers) {
        headers.insert(GRPC_ACCEPT_ENCODING, identity.clone());
    }
    headers.insert(header::ACCEPT_ENCODING, identity);
}

/// The execution: runs in a task of the engine, whatever becomes of the client.
fn execute<S, ReqB, ResB>(
    mut inner: S,
    mut request: Request<Body<ReqB>>,
    lease: Lease,
    (config, policy, grpc): (Arc<Config>, Arc<Policy>, bool),
    client: Weak<Hand>,
) -> impl Future<Output = ExecutionResult> + Send
where
    S: Service<Request<Body<ReqB>>, Response = Response<ResB>>,
    S::Future: Send,
    S::Error: Into<BoxError>,
    ResB: http_body::Body<Data = Bytes> + Send,
    ResB::Error: Into<BoxError>,
{
    ask_for_identity(request.headers_mut());
    request.extensions_mut().insert(lease.clone());
    if (config.served || lease.fence().is_none())
        && let Some(hand) = client.upgrade()
    {
        hand.begin(lease.clone());
    }
    let call = inner.call(request);
    async move {
        match call.await.map_err(Into::<BoxError>::into) {
            Ok(response) => {
                let on_contradiction = |outcome: Verdict, status: u16| {
                    let contradiction = EventKind::OutcomeContradicted { outcome, status };
                    config.semel.report_on(&lease, contradiction);
                };
                let route = Route {
                    kept: &config.kept,
                    policy: &policy,
                    content: &config.content,
                    read_on: config.read_on,
                    grpc,
                    on_contradiction: &on_contradiction,
                };
                capture::capture(response, route, &client).await
            }
            Err(error) => {
                config.semel.report_on(&lease, EventKind::Failed(&*error));
                capture::failed(&*error)
            }
        }
    }
}

/// Waits for the engine's word, leaving what the execution handed over until it is recorded. With
/// `id`, the answer carries what became of that record.
async fn conclude<B>(
    mut pending: Pending,
    hand: Arc<Hand>,
    voice: Voice<'_>,
    id: Option<RecordId>,
) -> Response<Body<B>> {
    let replied = poll_fn(|context| {
        if let Poll::Ready(reply) = Pin::new(&mut pending).poll(context) {
            return Poll::Ready(Ok(reply));
        }
        hand.poll_live(context).map(Err)
    });
    let replied = replied.await;
    let lease = hand.lease();
    let unguarded = matches!(replied, Ok(Reply::Unguarded(_)))
        || lease.as_ref().is_some_and(|lease| lease.fence().is_none());
    let (mut response, outcome) = match replied {
        Ok(reply) => {
            let outcome = outcome_of(&reply, voice);
            (answer(reply, &hand, voice), outcome)
        }
        Err((parts, pieces)) => {
            let body = Body::live(pieces, Some(pending));
            let outcome = if unguarded { ServedOutcome::Unguarded } else { ServedOutcome::Ran };
            (Response::from_parts(parts, body), outcome)
        }
    };
    if unguarded {
        response.headers_mut().insert(IDEMPOTENCY_GUARDED, HeaderValue::from_static("false"));
    }
    if id.is_some() {
        response.extensions_mut().insert(Served { id, outcome, lease });
    }
    response
}

fn outcome_of(reply: &Reply, voice: Voice<'_>) -> ServedOutcome {
    let (answer, outcome) = match reply {
        Reply::Unguarded(_) => return ServedOutcome::Unguarded,
        Reply::Ran(_) => return ServedOutcome::Ran,
        Reply::Problem(problem) => return ServedOutcome::Refused(*problem),
        Reply::Joined(answer) => (answer, ServedOutcome::Joined),
        Reply::Replayed(answer) => (answer, ServedOutcome::Replayed),
    };
    voice.replay_problem(answer).map_or(outcome, ServedOutcome::Refused)
}

/// The answer that a reply stands for.
fn answer<B>(reply: Reply, hand: &Hand, voice: Voice<'_>) -> Response<Body<B>> {
    match (reply, hand.take()) {
        (Reply::Ran(_) | Reply::Unguarded(_), Some(Handed::Whole(parts, whole))) => {
            Response::from_parts(parts, Body::whole(whole))
        }
        (
            Reply::Ran(_) | Reply::Unguarded(_),
            Some(Handed::Live(parts, pieces) | Handed::Cut(parts, pieces)),
        ) => Response::from_parts(parts, Body::live(pieces, None)),
        (Reply::Ran(answer) | Reply::Joined(answer) | Reply::Unguarded(answer), _) => {
            voice.answer(&answer, Origin::Execution)
        }
        (Reply::Replayed(answer), _) => voice.answer(&answer, Origin::Record),
        (Reply::Problem(problem), _) => voice.refuse(&problem.into()),
    }
}
