//! One guarded request, from its key to its answer.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, header, request::Parts};
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use semel::{
    BeginRequest, Deadline, EventKind, ExecutionOutput, Lease, OperationReply, Pending,
    RecordedReply,
    core::{About, Captured, Problem, RecordId, Reply},
};
use tower_service::Service;

use crate::{
    BoxError, RequestOutcome, RequestOutcomeKind, Subject, TraceParent,
    body::Body,
    buffered_body::BufferedBody,
    caller::{ClientContext, Identified},
    capture::{self, CaptureContext, HandlerResponse},
    config::{self, LayerConfig},
    cors,
    future::pass_through,
    grpc, handler_signals,
    header::{
        GRPC_ACCEPT_ENCODING, IDEMPOTENCY_DUPLICATE, IDEMPOTENCY_EXPIRES, IDEMPOTENCY_GUARDED,
        IDEMPOTENCY_TAG, IDEMPOTENCY_TRACE, date_after,
    },
    host,
    key::{KeyLookup, KeyRequirement, RequestKey},
    memory::{MemoryUse, PeerMemory, Reservation},
    offload,
    refusal::RequestRefusal,
    reply::{Origin, Responder},
    request::{self, DecodedBody},
    velocity,
};

/// A request that has a key, may have one in its body, or must be signed.
///
/// Values that live across an await are copied when the future moves, so few do: the steps in
/// between are plain functions.
#[derive(Debug)]
pub(crate) struct RequestGuard<S> {
    pub(crate) config: Arc<LayerConfig>,
    /// Ready, and called at most once.
    pub(crate) inner: S,
}

/// A request whose body was read.
#[expect(clippy::large_enum_variant, reason = "most are guarded, and a box costs an allocation")]
enum PreparedRequest {
    Guarded(GuardedRequest, Request<BufferedBody>),
    /// It has no key and needs none.
    Unguarded(Request<BufferedBody>),
}

/// A guarded request before it begins.
pub(crate) struct GuardedRequest {
    pub(crate) operation: BeginRequest,
    pub(crate) subject: Subject,
}

/// A started request.
enum StartedRequest<F> {
    Guarded { pending: Pending<HandlerResponse>, id: Option<RecordId> },
    // Rare, and large.
    Unguarded(Pin<Box<F>>),
}

impl<S> RequestGuard<S> {
    /// Handles a request.
    #[expect(clippy::manual_async_fn, reason = "an async fn would keep its arguments twice")]
    pub(crate) fn run<ReqB, ResB>(
        self,
        parts: Parts,
        body: ReqB,
        found: KeyLookup,
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
            let has_outer_guard = parts.extensions.get::<Lease>().is_some();
            let memory = ClientContext::memory_of(&parts.extensions).cloned();
            let responder = config.responder(parts.version, &parts.headers);
            let deadline = match config.deadline_of(&parts.headers) {
                Ok(deadline) => deadline,
                Err(refusal) => return Ok(config.refuse(responder, &refusal)),
            };
            // An unidentified caller is refused before the body is read. With a signature the body
            // must be read first, because it proves the sender.
            let mut caller = early_caller(&config, &parts, &found);
            if matches!(&caller, Some(Err(refusal)) if refusal.waits_for_keys()) {
                // Rare, and large.
                let refreshed = Box::pin(config.callers.keys_refreshed());
                if let Err(refusal) = until(deadline, refreshed).await {
                    return Ok(config.refuse(responder, &refusal));
                }
                caller = early_caller(&config, &parts, &found);
            }
            // Whether a request without a key in its head is guarded is known later.
            let caller = match (caller, &found) {
                (None, _) | (Some(Err(_)), KeyLookup::InBody(_)) => Ok(None),
                (Some(caller), _) => caller.map(Some),
            };
            let caller = match caller {
                Ok(caller) => caller,
                Err(refusal) => return Ok(config.refuse(responder, &refusal)),
            };
            let read = until(deadline, read(&config, &parts, body)).await;
            let prepared = match read.flatten() {
                Ok(buffered) if offload::needs_offload(&parts.headers, buffered.data()) => {
                    let prepared = prepare_offloaded(&config, parts, buffered, found, caller);
                    // Rare, and large.
                    until(deadline, Box::pin(prepared)).await.flatten()
                }
                Ok(buffered) => prepare(&config, parts, buffered, found, caller),
                Err(refusal) => Err(refusal),
            };
            let started = prepared.and_then(|prepared| {
                self.begin(prepared, deadline, responder.grpc, memory.as_ref())
            });
            match started {
                Err(refusal) => Ok(config.refuse(responder, &refusal)),
                Ok(StartedRequest::Guarded { pending, id }) => {
                    Ok(respond(&config, memory, pending, responder, id).await)
                }
                Ok(StartedRequest::Unguarded(call)) => {
                    let warn = config.key.requirement() == KeyRequirement::Warn;
                    config.semel.report(&config.scope, EventKind::Keyless);
                    Ok(pass_through(call.await?, warn.then_some(&*config), has_outer_guard))
                }
            }
        }
    }

    /// Passes on a request that is not guarded here, once it is verified.
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
        let has_outer_guard = parts.extensions.get::<Lease>().is_some();
        let responder = config.responder(parts.version, &parts.headers);
        let read = read(&config, &parts, body).await;
        let verified = read.and_then(|buffered| {
            verify(&config, &parts.headers, buffered.data())?;
            Ok(Request::from_parts(parts, Body::buffered(buffered)))
        });
        match verified {
            Ok(request) => Ok(pass_through(self.inner.call(request).await?, None, has_outer_guard)),
            Err(refusal) => Ok(config.refuse(responder, &refusal)),
        }
    }

    /// Begins a request that can be answered. Without memory for its answer it does not begin.
    fn begin<ReqB, ResB>(
        mut self,
        prepared: PreparedRequest,
        deadline: Option<Deadline>,
        grpc: bool,
        memory: Option<&PeerMemory>,
    ) -> Result<StartedRequest<S::Future>, RequestRefusal>
    where
        S: Service<Request<Body<ReqB>>, Response = Response<ResB>> + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        ReqB: Send + 'static,
        ResB: http_body::Body<Data = Bytes> + Send + 'static,
        ResB::Error: Into<BoxError>,
    {
        Ok(match prepared {
            PreparedRequest::Unguarded(request) => {
                StartedRequest::Unguarded(Box::pin(self.inner.call(request.map(Body::buffered))))
            }
            PreparedRequest::Guarded(GuardedRequest { mut operation, subject }, mut request) => {
                operation.deadline = deadline;
                request.extensions_mut().insert(subject);
                let policy = Arc::clone(&operation.policy);
                let reserve = |memory: &PeerMemory| {
                    let reservation = memory.reserve_answer(policy.response_bytes_max);
                    reservation.ok_or_else(request::out_of_memory)
                };
                let memory = memory.map(reserve).transpose()?;
                let semel = self.config.semel.clone();
                let names_record = self.config.record_outcome || self.config.held_status.is_some();
                let id = names_record.then(|| operation.id.clone());
                let (config, inner) = (self.config, self.inner);
                let request = request.map(Body::buffered);
                let execute = move |lease| {
                    let route = CaptureContext { config, policy, lease, grpc };
                    execute(inner, request, route, memory)
                };
                StartedRequest::Guarded { pending: semel.begin(operation, execute), id }
            }
        })
    }
}

/// The caller of a request whose body is not read yet, unless the body proves it.
fn early_caller(
    config: &LayerConfig,
    parts: &Parts,
    found: &KeyLookup,
) -> Option<Result<Identified, RequestRefusal>> {
    let is_guarded = *found != KeyLookup::Nothing && config.signature.is_none();
    is_guarded.then(|| config.callers.identify(parts))
}

/// Waits for a step before the operation begins, at most until the deadline of the request.
async fn until<T>(
    deadline: Option<Deadline>,
    step: impl Future<Output = T>,
) -> Result<T, RequestRefusal> {
    let Some(deadline) = deadline else { return Ok(step.await) };
    let mut step = pin!(step);
    // Large, and rare: most steps are ready.
    let mut expiry = None;
    poll_fn(|context| {
        if let Poll::Ready(result) = step.as_mut().poll(context) {
            return Poll::Ready(Ok(result));
        }
        let expiry = expiry.get_or_insert_with(|| Box::pin(deadline.wait()));
        expiry.as_mut().poll(context).map(|()| Err(Problem::DeadlineExceeded.into()))
    })
    .await
}

/// Reads the body of a request. The number of concurrent reads is limited.
async fn read<B>(
    config: &LayerConfig,
    parts: &Parts,
    body: B,
) -> Result<BufferedBody, RequestRefusal>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let frames = AtomicU64::new(0);
    let body = FrameCounter { body, frames: &frames };
    let memory = ClientContext::memory_of(&parts.extensions);
    let memory = memory.map(|memory| memory.reservation(MemoryUse::Requests));
    let max = config.policy.request_bytes_max;
    let sender = ClientContext::sender_of(&parts.extensions);
    // Clients that share an address share its memory: a stalled body makes room for the next.
    let evict = || sender.peer().is_some() && config.semel.evict_idlest_of(sender);
    let mut reading = pin!(request::read(&parts.headers, body, max, memory, &evict));
    // Most bodies arrive together with their head and are ready.
    if let Poll::Ready(buffered) =
        poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await
    {
        return buffered;
    }
    let mut arrival = config.semel.admit(sender)?;
    let mut seen = 0;
    poll_fn(|context| {
        if let Poll::Ready(buffered) = reading.as_mut().poll(context) {
            return Poll::Ready(buffered);
        }
        let now = frames.load(Ordering::Relaxed);
        if now != seen {
            seen = now;
            arrival.progress();
        }
        arrival.poll_evicted(context).map(|()| Err(evicted()))
    })
    .await
}

/// The refusal of an evicted request.
fn evicted() -> RequestRefusal {
    let detail = "too many requests wait for their bodies, and the rest of this one did not come \
                  soon enough; nothing was done";
    RequestRefusal::detailed(Problem::TooManyInFlight, detail)
}

pin_project! {
    /// A body that counts its frames, except empty ones.
    struct FrameCounter<'a, B> {
        #[pin]
        body: B,
        frames: &'a AtomicU64,
    }
}

impl<B: http_body::Body<Data = Bytes>> http_body::Body for FrameCounter<'_, B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let frame = ready!(this.body.poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && frame.data_ref().is_some_and(|data| !data.is_empty())
        {
            this.frames.fetch_add(1, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Prepares a request whose body was read.
fn prepare(
    config: &LayerConfig,
    parts: Parts,
    buffered: BufferedBody,
    found: KeyLookup,
    caller: Option<Identified>,
) -> Result<PreparedRequest, RequestRefusal> {
    let identify = |parts: &Parts| caller.map_or_else(|| config.callers.identify(parts), Ok);
    let guarded = guarded(config, &parts, buffered.data(), found, identify)?;
    let request = Request::from_parts(parts, buffered);
    Ok(match guarded {
        Some(guarded) => PreparedRequest::Guarded(guarded, request),
        None => PreparedRequest::Unguarded(request),
    })
}

/// As [`prepare`], on a thread that serves no connection. Meanwhile the request counts as an
/// arriving one.
async fn prepare_offloaded(
    config: &Arc<LayerConfig>,
    parts: Parts,
    buffered: BufferedBody,
    found: KeyLookup,
    caller: Option<Identified>,
) -> Result<PreparedRequest, RequestRefusal> {
    let config = Arc::clone(config);
    let sender = ClientContext::sender_of(&parts.extensions);
    let arrival = Some(config.semel.admit(sender)?);
    let work = move || prepare(&config, parts, buffered, found, caller);
    offload::run(sender.peer(), arrival, work).await?
}

/// Verifies the signature of a request, if one is required.
fn verify(config: &LayerConfig, headers: &HeaderMap, data: &[u8]) -> Result<(), RequestRefusal> {
    config.signature.as_ref().map_or(Ok(()), |signature| signature.check(headers, data))
}

/// All steps between the body and the engine: the signature, the key if it is in the body, the
/// fingerprint. `None` if there is no key and none is required.
pub(crate) fn guarded(
    config: &LayerConfig,
    parts: &Parts,
    data: &[u8],
    found: KeyLookup,
    identify: impl FnOnce(&Parts) -> Result<Identified, RequestRefusal>,
) -> Result<Option<GuardedRequest>, RequestRefusal> {
    verify(config, &parts.headers, data)?;
    let decoded = DecodedBody::of(&parts.headers, data, config.policy.request_bytes_max)?;
    let key = match found {
        KeyLookup::Key(key) => Some(RequestKey { key, from_body: false }),
        KeyLookup::Nothing => None,
        KeyLookup::InBody(_) if decoded.opaque => return Err(unreadable()),
        KeyLookup::InBody(from) => {
            config.key.find_in_request(from, &parts.headers, &decoded.kind, &decoded.body)?
        }
    };
    let Some(RequestKey { key, from_body }) = key else {
        return match config.key.requirement() {
            KeyRequirement::Required => {
                Err(config.key.missing(grpc::is_grpc_request(parts.version, &parts.headers)))
            }
            KeyRequirement::Optional | KeyRequirement::Warn => Ok(None),
        };
    };
    let Identified { caller, proven, .. } = identify(parts)?;
    let host = host::of(parts, config.forwarded_host);
    let subject = config.subject.of(parts, host.as_deref(), &decoded);
    let rule = config.fingerprint_for(from_body);
    let id = RecordId::new(config.scope.clone(), caller, key);
    let former = config.former.ids(&id, parts);
    let issued = config.issued_keys.as_ref().map(|keys| keys.verify(&id, &former, config::now()));
    let issued = issued.transpose()?.flatten();
    let fingerprint = decoded.fingerprint(parts, host.as_deref(), rule)?;
    let policy = Arc::clone(config.policy_for(from_body, proven));
    let mut operation = BeginRequest::new(id, fingerprint, policy);
    operation.former = former;
    if let Some(issued) = issued {
        operation.known_key_only = issued.is_expired;
        operation.retention_min = issued.retention_min;
    }
    operation.sender = ClientContext::sender_of(&parts.extensions);
    operation.about = About::new(&subject.about);
    let captured = subject.captured.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    operation.captured = Captured::new(captured);
    if let Some(rules) = &config.velocity {
        let intent = if rules.need_intent() && from_body {
            decoded.fingerprint(parts, host.as_deref(), &config.intent_rule(from_body))?
        } else {
            fingerprint
        };
        operation.limits = rules.limits(parts, &decoded, &operation, intent);
    }
    Ok(Some(GuardedRequest { operation, subject }))
}

fn unreadable() -> RequestRefusal {
    let detail = "the key stands in the body, whose Content-Encoding cannot be undone here; send \
                  it with gzip, with deflate or without any";
    RequestRefusal::detailed(Problem::BodyMalformed, detail)
}

/// A recorded answer must fit every client that may repeat the request.
fn ask_for_identity(headers: &mut HeaderMap, grpc: bool) {
    let identity = HeaderValue::from_static("identity");
    if grpc {
        headers.insert(GRPC_ACCEPT_ENCODING, identity.clone());
    }
    headers.insert(header::ACCEPT_ENCODING, identity);
}

/// Runs the operation, in a task of the engine that outlives the client.
fn execute<S, ReqB, ResB>(
    mut inner: S,
    mut request: Request<Body<ReqB>>,
    route: CaptureContext,
    memory: Option<Reservation>,
) -> impl Future<Output = ExecutionOutput<HandlerResponse>> + Send
where
    S: Service<Request<Body<ReqB>>, Response = Response<ResB>>,
    S::Future: Send,
    S::Error: Into<BoxError>,
    ResB: http_body::Body<Data = Bytes> + Send + 'static,
    ResB::Error: Into<BoxError>,
{
    ask_for_identity(request.headers_mut(), route.grpc);
    route.config.deadline.rewrite(request.headers_mut(), route.lease.deadline(), config::now());
    let trace = request.extensions_mut().remove::<TraceParent>();
    request.extensions_mut().insert(route.lease.clone());
    let call = inner.call(request);
    async move {
        match call.await.map_err(Into::<BoxError>::into) {
            Ok(mut response) => {
                if let Some(tag) = velocity::answer_tag(response.headers()) {
                    route.lease.set_answer_tag(tag);
                }
                response.headers_mut().remove(IDEMPOTENCY_TAG);
                // One that the service sends is no trace of ours.
                response.headers_mut().remove(IDEMPOTENCY_TRACE);
                if let Some(TraceParent(trace)) = trace {
                    response.headers_mut().insert(IDEMPOTENCY_TRACE, trace);
                }
                // A replay may go to another origin.
                if route.config.cors().is_some() {
                    cors::strip(response.headers_mut());
                }
                capture::capture(response, route, memory).await
            }
            Err(error) => {
                route.config.semel.report_on(&route.lease, EventKind::Failed(&*error));
                ExecutionOutput::Ended(handler_signals::failed(&*error), None)
            }
        }
    }
}

/// Waits for the engine's reply, which carries the handler's answer. With `id`, the response
/// carries the outcome of that record.
async fn respond<B>(
    config: &LayerConfig,
    memory: Option<PeerMemory>,
    pending: Pending<HandlerResponse>,
    responder: Responder<'_>,
    id: Option<RecordId>,
) -> Response<Body<B>> {
    let is_unguarded = |lease: &Lease| lease.fence().is_none();
    let mut expires_in = None;
    let (mut response, outcome, lease, unguarded) = match pending.await {
        OperationReply::Replied { reply, own, expires_in: kept } => {
            let (lease, live) = own.map_or((None, None), |run| (Some(run.lease), run.value));
            let unguarded =
                matches!(reply, Reply::Unguarded(_)) || lease.as_ref().is_some_and(is_unguarded);
            let held = matches!(reply, Reply::Problem(Problem::OutcomeUnknown));
            let status = config.held_status.as_ref().filter(|_| held);
            let responder = match status.zip(id.as_ref()) {
                Some((status, id)) => responder.with_next_read(status.next_read(id)),
                None => responder,
            };
            let outcome = outcome_of(&reply, responder);
            if let Reply::Limited(refused) = reply {
                config.report_limit(refused);
            }
            match answer(config, reply, live, responder, memory.as_ref()) {
                Ok(response) => {
                    expires_in = kept;
                    (response, outcome, lease, unguarded)
                }
                Err(refusal) => {
                    config.semel.report(&config.scope, EventKind::Refused(refusal.problem));
                    let outcome = RequestOutcomeKind::Refused(refusal.problem);
                    (responder.refuse(&refusal), outcome, lease, unguarded)
                }
            }
        }
        OperationReply::Early { value, lease, recorded } => {
            let unguarded = is_unguarded(&lease);
            let outcome =
                if unguarded { RequestOutcomeKind::Unguarded } else { RequestOutcomeKind::Ran };
            (live_response(value, Some(recorded)), outcome, Some(lease), unguarded)
        }
    };
    if let Some(expires) = expires_in.and_then(|left| date_after(config::now(), left)) {
        response.headers_mut().insert(IDEMPOTENCY_EXPIRES, expires);
    }
    if let Some(lease) = &lease
        && config.report_exceeded_limits(lease)
    {
        let possible = HeaderValue::from_static("possible");
        response.headers_mut().insert(IDEMPOTENCY_DUPLICATE, possible);
    }
    if unguarded {
        response.headers_mut().insert(IDEMPOTENCY_GUARDED, HeaderValue::from_static("false"));
    }
    if config.record_outcome {
        response.extensions_mut().insert(RequestOutcome { id, outcome, lease });
    }
    response
}

fn outcome_of(reply: &Reply, responder: Responder<'_>) -> RequestOutcomeKind {
    let (answer, outcome) = match reply {
        Reply::Unguarded(_) => return RequestOutcomeKind::Unguarded,
        Reply::Ran(_) => return RequestOutcomeKind::Ran,
        Reply::Problem(problem) => return RequestOutcomeKind::Refused(*problem),
        Reply::Limited(refusal) => return RequestOutcomeKind::Refused(refusal.problem()),
        Reply::Joined(answer) => (answer, RequestOutcomeKind::Joined),
        Reply::Replayed(answer) => (answer, RequestOutcomeKind::Replayed),
    };
    responder.replay_problem(answer).map_or(outcome, RequestOutcomeKind::Refused)
}

/// The response of the execution that this request began. `recorded` completes when the operation
/// is recorded; `None` if it already is.
fn live_response<B>(live: HandlerResponse, recorded: Option<RecordedReply>) -> Response<Body<B>> {
    match live {
        HandlerResponse::Buffered(parts, buffered) => {
            Response::from_parts(parts, Body::buffered(buffered))
        }
        HandlerResponse::Chunks(parts, chunks) => {
            Response::from_parts(parts, Body::streaming(chunks, recorded))
        }
    }
}

/// The response for a reply. A recorded answer can be requested again, so it may be refused while
/// there is no memory for it.
fn answer<B>(
    config: &LayerConfig,
    reply: Reply,
    live: Option<HandlerResponse>,
    responder: Responder<'_>,
    memory: Option<&PeerMemory>,
) -> Result<Response<Body<B>>, RequestRefusal> {
    Ok(match (reply, live) {
        (Reply::Ran(_) | Reply::Unguarded(_), Some(live)) => live_response(live, None),
        (Reply::Ran(answer) | Reply::Unguarded(answer), None) => {
            responder.answer(&answer, Origin::Execution, None)?
        }
        (Reply::Joined(answer), _) => responder.answer(&answer, Origin::Execution, memory)?,
        (Reply::Replayed(answer), _) => responder.answer(&answer, Origin::Record, memory)?,
        (Reply::Problem(problem), _) => responder.refuse(&problem.into()),
        (Reply::Limited(refused), _) => responder.refuse(&config.limit_refusal(refused)),
    })
}
