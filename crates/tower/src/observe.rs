//! Observed requests: the layer reports what it would have done, and does nothing.
//!
//! The request goes to the service at once and its body is streamed. A tee on the body copies what
//! the service reads, and a tee on the answer waits for its end. Both report to a concurrent task,
//! which calls the engine. The request never waits for that task.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use semel::{
    Admission, EventKind, ObservedOutcome,
    core::{ExecutionResult, Problem, Reason},
};
use tokio::sync::oneshot;

use crate::{
    body::Body,
    caller::{ClientContext, Identified},
    config::LayerConfig,
    grpc,
    guard::{self, GuardedRequest},
    key::{KeyLookup, KeyRequirement},
    memory::MemoryUse,
    offload,
    refusal::RequestRefusal,
    request,
    tee_body::{BodyTee, ObservedBody, RequestTee, ResponseEnd, ResponseTee},
};

/// Observes a request on its way to the service. Also returns the tee for the answer; `None` if the
/// layer would have refused or passed the request.
pub(crate) fn observe_request<B>(
    config: &Arc<LayerConfig>,
    request: Request<B>,
) -> (Request<Body<B>>, Option<ResponseTee>)
where
    B: http_body::Body<Data = Bytes>,
{
    let (parts, body) = request.into_parts();
    match ObservedRequest::admit(config, &parts, &body) {
        Err(would) => {
            config.semel.report(&config.scope, EventKind::Observed(would));
            (Request::from_parts(parts, Body::passed(body)), None)
        }
        Ok(observed) => {
            let (body_tx, body_rx) = oneshot::channel();
            let (end_tx, ended) = oneshot::channel();
            let max = config.policy.response_bytes_max;
            let answer =
                ResponseTee::new(max, grpc::is_grpc_request(parts.version, &parts.headers), end_tx);
            tokio::spawn(observed.run(body_rx, ended));
            let memory = ClientContext::memory_of(&parts.extensions);
            let memory = memory.map(|memory| memory.reservation(MemoryUse::Requests));
            let tee = RequestTee::new(&body, config.policy.request_bytes_max, memory, body_tx);
            let body = Body::observed(body, BodyTee::Request(tee));
            (Request::from_parts(parts, body), Some(answer))
        }
    }
}

/// Passes the answer on and observes it.
pub(crate) async fn observe_response<F, B, E>(
    call: F,
    mut tee: ResponseTee,
) -> Result<Response<Body<B>>, E>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: http_body::Body<Data = Bytes>,
    E: 'static,
{
    match call.await {
        Ok(response) => {
            let (parts, body) = response.into_parts();
            tee.begin(&parts, &body);
            Ok(Response::from_parts(parts, Body::observed(body, BodyTee::Response(tee))))
        }
        Err(error) => {
            tee.fail(&error);
            Err(error)
        }
    }
}

/// The task that reports what would have been done with one request.
struct ObservedRequest {
    config: Arc<LayerConfig>,
    /// The part of the head that a fingerprint needs.
    parts: Parts,
    found: KeyLookup,
    caller: Result<Identified, RequestRefusal>,
    admission: Admission,
}

impl ObservedRequest {
    /// All checks that the layer makes before it reads the body, in the same order.
    fn admit<B>(config: &Arc<LayerConfig>, parts: &Parts, body: &B) -> Result<Self, ObservedOutcome>
    where
        B: http_body::Body,
    {
        let refused = |refusal: RequestRefusal| ObservedOutcome::Refuse(refusal.problem);
        let found = config.key.find_in_headers(&parts.headers).map_err(refused)?;
        if found == KeyLookup::Nothing {
            return Err(match config.key.requirement() {
                KeyRequirement::Required => ObservedOutcome::Refuse(Problem::KeyMissing),
                KeyRequirement::Optional | KeyRequirement::Warn => ObservedOutcome::Keyless,
            });
        }
        config.deadline_of(&parts.headers).map_err(refused)?;
        // Identified now, because the request and its extensions move on to the service.
        let caller = config.callers.identify(parts);
        // Keys that verify the caller are awaited beside the request.
        let waits_for_keys = matches!(&caller, Err(refusal) if refusal.waits_for_keys());
        if let Err(refusal) = &caller
            && !waits_for_keys
        {
            config.report_caller_failure(refusal);
            if let KeyLookup::Key(_) = &found {
                return Err(ObservedOutcome::Refuse(refusal.problem));
            }
        }
        if request::is_declared_over(&parts.headers, body, config.policy.request_bytes_max) {
            return Err(ObservedOutcome::Refuse(Problem::BodyTooLarge));
        }
        let counted = caller.clone().unwrap_or_else(|_| Identified::anonymous());
        let admission = config
            .semel
            .admit_observed(&config.scope, &counted.caller)
            .map_err(ObservedOutcome::Refuse)?;
        let mut head = request::head(parts);
        // Limits count by the address of the client.
        if waits_for_keys || config.velocity.is_some() {
            head.extensions = parts.extensions.clone();
        }
        let (config, parts) = (Arc::clone(config), head);
        Ok(Self { config, parts, found, caller, admission })
    }

    async fn run(
        self,
        body_rx: oneshot::Receiver<ObservedBody>,
        ended: oneshot::Receiver<ResponseEnd>,
    ) {
        let Self { config, parts, found, mut caller, admission } = self;
        if matches!(&caller, Err(refusal) if refusal.waits_for_keys()) {
            config.callers.keys_refreshed().await;
            caller = config.callers.identify(&parts);
            if let Err(refusal) = &caller {
                config.report_caller_failure(refusal);
            }
        }
        let would = match body_rx.await {
            Err(_) => ObservedOutcome::Unread,
            Ok(ObservedBody::Refused(problem)) => ObservedOutcome::Refuse(problem),
            Ok(ObservedBody::Complete(data)) => {
                match evaluate(&config, &parts, &data, found, caller).await {
                    Err(refusal) => ObservedOutcome::Refuse(refusal.problem),
                    Ok(None) => ObservedOutcome::Keyless,
                    Ok(Some(GuardedRequest { operation, .. })) => {
                        drop((admission, data, parts));
                        let policy = Arc::clone(&operation.policy);
                        // The response tee reports the end even if it is dropped.
                        let ended = async move {
                            let lost = ExecutionResult::Broken(Reason::OperationError);
                            ended.await.map_or(lost, |end| end.judge(&policy))
                        };
                        return config.semel.observe(operation, ended).await;
                    }
                }
            }
        };
        config.semel.report(&config.scope, EventKind::Observed(would));
    }
}

/// What the layer would have done with a request whose body was read.
async fn evaluate(
    config: &Arc<LayerConfig>,
    parts: &Parts,
    data: &Bytes,
    found: KeyLookup,
    caller: Result<Identified, RequestRefusal>,
) -> Result<Option<GuardedRequest>, RequestRefusal> {
    if !offload::needs_offload(&parts.headers, data) {
        return guard::guarded(config, parts, data, found, |_| caller);
    }
    let mut head = request::head(parts);
    head.extensions = parts.extensions.clone();
    let (config, parts, data) = (Arc::clone(config), head, data.clone());
    let work = move || guard::guarded(&config, &parts, &data, found, |_| caller);
    // An observed request has an admission of its own.
    offload::run(None, None, work).await?
}
