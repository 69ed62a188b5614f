//! A request that is only looked at: what the layer would have done with it is told, and nothing
//! is done.
//!
//! The request goes to the service at once and its body streams as ever; an ear on the body copies
//! what the service reads, and an ear on the answer waits for its end. Both tell a task beside the
//! request, which asks the engine. Whatever happens in there, nobody waits for it.

mod ear;

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use semel::{
    Admission, EventKind, Would,
    core::{ExecutionResult, Problem, Reason},
};
use tokio::sync::oneshot;

pub(crate) use self::ear::Ear;
use self::ear::{AnswerEar, End, Heard, RequestEar};
use crate::{
    BoxError,
    body::Body,
    caller::Identified,
    config::Config,
    grpc,
    guard::{self, Guarded},
    key::{Found, Need},
    refusal::Refusal,
    request,
};

/// Looks at a request on its way to the service. What it returns beside the request listens to the
/// answer; nothing does if the request would not have come as far as to have one.
pub(crate) fn begin<B>(
    config: &Arc<Config>,
    request: Request<B>,
) -> (Request<Body<B>>, Option<AnswerEar>)
where
    B: http_body::Body<Data = Bytes>,
{
    let (parts, body) = request.into_parts();
    match Attendant::admit(config, &parts, &body) {
        Err(would) => {
            config.semel.report(&config.scope, EventKind::Would(would));
            (Request::from_parts(parts, Body::passed(body)), None)
        }
        Ok(attendant) => {
            let (told, heard) = oneshot::channel();
            let (ending, ended) = oneshot::channel();
            let max = config.policy.response_bytes_max;
            let answer = AnswerEar::new(max, grpc::is_grpc(&parts.headers), ending);
            tokio::spawn(attendant.run(heard, ended));
            let ear = RequestEar::new(&body, config.policy.request_bytes_max, told);
            let body = Body::observed(body, Ear::Request(ear));
            (Request::from_parts(parts, body), Some(answer))
        }
    }
}

/// Passes the answer on, and listens to it.
pub(crate) async fn end<F, B, E>(call: F, mut ear: AnswerEar) -> Result<Response<Body<B>>, E>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: http_body::Body<Data = Bytes>,
    E: 'static,
{
    match call.await {
        Ok(response) => {
            let (parts, body) = response.into_parts();
            ear.begin(&parts, &body);
            Ok(Response::from_parts(parts, Body::observed(body, Ear::Answer(ear))))
        }
        Err(error) => {
            ear.fail(&error);
            Err(error)
        }
    }
}

/// Stands beside one request, and tells what would have become of it.
struct Attendant {
    config: Arc<Config>,
    /// As much of the head as a fingerprint asks.
    parts: Parts,
    found: Found,
    caller: Result<Identified, Refusal>,
    admission: Admission,
}

impl Attendant {
    /// Everything that the layer would have asked before it read the body, in the same order.
    fn admit<B>(config: &Arc<Config>, parts: &Parts, body: &B) -> Result<Self, Would>
    where
        B: http_body::Body,
    {
        let refused = |refusal: Refusal| Would::Refuse(refusal.problem);
        let found = config.key.ask_headers(&parts.headers).map_err(refused)?;
        if found == Found::Nothing {
            return Err(match config.key.need() {
                Need::Required => Would::Refuse(Problem::KeyMissing),
                Need::Optional | Need::Warn => Would::Keyless,
            });
        }
        // Asked now, because a rule may look at what goes on with the request.
        let caller = config.callers.identify(parts);
        if let (Found::Key(_), Err(refusal)) = (&found, &caller) {
            return Err(Would::Refuse(refusal.problem));
        }
        if request::is_declared_over(&parts.headers, body, config.policy.request_bytes_max) {
            return Err(Would::Refuse(Problem::BodyTooLarge));
        }
        let counted = caller.clone().unwrap_or_else(|_| Identified::anonymous());
        let admission = config.semel.admit_observed(&counted.caller).map_err(Would::Refuse)?;
        let (config, parts) = (Arc::clone(config), request::head(parts));
        Ok(Self { config, parts, found, caller, admission })
    }

    async fn run(self, heard: oneshot::Receiver<Heard>, ended: oneshot::Receiver<End>) {
        let Self { config, parts, found, caller, admission } = self;
        let would = match heard.await {
            Err(_) => Would::Unseen,
            Ok(Heard::Refused(problem)) => Would::Refuse(problem),
            Ok(Heard::Whole(data)) => {
                match guard::guarded(&config, &parts, &data, found, |_| caller) {
                    Err(refusal) => Would::Refuse(refusal.problem),
                    Ok(None) => Would::Keyless,
                    Ok(Some(Guarded { operation, .. })) => {
                        drop((admission, data, parts));
                        let policy = Arc::clone(&operation.policy);
                        // Whoever would say how it ended says so even if it is dropped.
                        let ended = async move {
                            let lost = ExecutionResult::Broken(Reason::OperationError);
                            ended.await.map_or(lost, |end| end.judge(&policy))
                        };
                        return config.semel.observe(operation, ended).await;
                    }
                }
            }
        };
        config.semel.report(&config.scope, EventKind::Would(would));
    }
}

/// Which problem a body that breaks would have been.
fn broken(error: &BoxError) -> Problem {
    if request::is_over_a_limit(&**error) { Problem::BodyTooLarge } else { Problem::BodyMalformed }
}
