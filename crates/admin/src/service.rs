//! The service API: claims, and what renews or ends them, alone or in a batch.
//!
//! A front of the engine. It keeps nothing between two calls: a claim carries what the next call
//! needs, and every call may be repeated.

mod reply;

use std::{
    future::{Future, poll_fn},
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    extract::{Extension, Request, State},
    http::{HeaderMap, header},
    response::{IntoResponse as _, Response},
};
use data_encoding::HEXLOWER_PERMISSIVE;
use http_body_util::BodyExt as _;
use semel::{
    BeginRequest, RemoteClaim, RemoteFinish,
    core::{
        About, Claimant, Fenced, Fingerprint, Finish, Grant, Key, OwnerToken, Problem, Reason,
        RecordId, Release, Scope, StoreError, StoreErrorKind, time::millis,
    },
    once,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use self::reply::ServiceReply;
use crate::{
    api_error::ApiError,
    claims::{
        claim_rules::{RuleTable, SettingError},
        claim_seal::HeldClaim,
        wire::{
            self, CallBody, ClaimCall, ClaimVerb, CompleteCall, HoldCall, NamedCall, ReleaseCall,
            RenewCall,
        },
    },
    json_object,
    state::ApiState,
    tokens::{Credential, Permission},
};

/// Maximum size of a request body.
const BODY_BYTES_MAX: usize = 8 << 20;

/// How much of a request body is read at most, to discard it.
const DISCARDED_BYTES_MAX: usize = 64 << 20;

/// Bodies up to this size are read without a permit.
const SMALL_BODY_BYTES_MAX: u64 = 256 << 10;

/// Maximum number of operations in a batch.
const BATCH_MAX: usize = 500;

/// Maximum number of operations of a batch that run at once: each may read a result.
const BATCH_RUNNING_MAX: usize = 100;

/// Maximum size of the results in the answer to a batch. The first may be larger.
const BATCH_RESULTS_BYTES_MAX: usize = 16 << 20;

type HandlerState = State<Arc<ApiState>>;
type Peer = Extension<SocketAddr>;

pub(super) async fn claim(state: HandlerState, peer: Peer, request: Request) -> Response {
    single(state, peer, request, ClaimVerb::Claim).await
}

pub(super) async fn complete(state: HandlerState, peer: Peer, request: Request) -> Response {
    single(state, peer, request, ClaimVerb::Complete).await
}

pub(super) async fn renew(state: HandlerState, peer: Peer, request: Request) -> Response {
    single(state, peer, request, ClaimVerb::Renew).await
}

pub(super) async fn release(state: HandlerState, peer: Peer, request: Request) -> Response {
    single(state, peer, request, ClaimVerb::Release).await
}

pub(super) async fn hold(state: HandlerState, peer: Peer, request: Request) -> Response {
    single(state, peer, request, ClaimVerb::Hold).await
}

async fn single(
    State(state): HandlerState,
    Extension(peer): Peer,
    request: Request,
    operation: ClaimVerb,
) -> Response {
    let received = receive(&state, peer, request).await;
    let (credential, body) = match received {
        Ok(received) => received,
        Err(error) => return ServiceReply::from(error).into_response(),
    };
    let caller = ApiCall { state: &state, rules: state.service.rules.get(), credential };
    caller.run(operation, body, None).await.into_response()
}

pub(super) async fn batch(
    State(state): HandlerState,
    Extension(peer): Peer,
    request: Request,
) -> Response {
    let (credential, body) = match receive(&state, peer, request).await {
        Ok(received) => received,
        Err(error) => return ServiceReply::from(error).into_response(),
    };
    let operations: Vec<&RawValue> = match serde_json::from_slice(&body) {
        Ok(operations) => operations,
        Err(error) => return refuse_malformed(&error.to_string()).into_response(),
    };
    if operations.len() > BATCH_MAX {
        let detail = format!("A batch has at most {BATCH_MAX} operations.");
        return refuse_malformed(&detail).into_response();
    }
    let caller = &ApiCall { state: &state, rules: state.service.rules.get(), credential };
    let (running, results) = (&Semaphore::new(BATCH_RUNNING_MAX), &BatchResults::default());
    let replies = operations.into_iter().map(|operation| {
        let operation = body.slice_ref(operation.get().as_bytes());
        Box::pin(async move {
            let _permit = running.acquire().await;
            match json_object::from_slice::<NamedCall>(&operation) {
                Ok(named) => caller.run(named.op, operation, Some(results)).await.element(),
                Err(error) => refuse_malformed(&error.to_string()).element(),
            }
        })
    });
    let elements = join_all(replies.collect()).await;
    ServiceReply::done(format!("[{}]", elements.join(","))).into_response()
}

/// Checks the token, and reads the body.
async fn receive(
    state: &ApiState,
    peer: SocketAddr,
    request: Request,
) -> Result<(Credential, Bytes), ApiError> {
    let (head, body) = request.into_parts();
    let credential = state.authorize(&head.headers, Permission::Claims, peer, head.uri.path())?;
    let credential = credential.cloned().ok_or_else(ApiError::token_missing)?;
    if !has_json(&head.headers) {
        return Err(ApiError::not_json());
    }
    let body = read_body(state, &head.headers, body).await?;
    Ok((credential, body))
}

/// Whether a request declares its body as JSON.
pub(super) fn has_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

/// Reads a body. One that is too large is read on without being kept, so that its client can read
/// the refusal.
async fn read_body(
    state: &ApiState,
    headers: &HeaderMap,
    mut body: Body,
) -> Result<Bytes, ApiError> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length: Option<u64> = length.and_then(|text| text.parse().ok());
    let is_small = length.is_some_and(|length| length <= SMALL_BODY_BYTES_MAX);
    let _permit = match is_small {
        true => None,
        false => state.service.large_bodies.acquire().await.ok(),
    };
    let (mut bytes, mut total) = (Vec::new(), 0_usize);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| ApiError::malformed("The body did not arrive."))?;
        let Ok(data) = frame.into_data() else { continue };
        total = total.saturating_add(data.len());
        if total > DISCARDED_BYTES_MAX {
            break;
        }
        if total <= BODY_BYTES_MAX {
            bytes.extend_from_slice(&data);
        }
    }
    if total > BODY_BYTES_MAX { Err(too_large()) } else { Ok(bytes.into()) }
}

fn too_large() -> ApiError {
    ApiError::too_large("The body is larger than 8 MiB.")
}

fn refuse_malformed(detail: &str) -> ServiceReply {
    ApiError::malformed(detail).into()
}

/// A call of an authenticated client.
struct ApiCall<'a> {
    state: &'a ApiState,
    rules: Arc<RuleTable>,
    credential: Credential,
}

impl ApiCall<'_> {
    /// Runs one operation. In a batch, its body names it, and it does not wait.
    async fn run(
        &self,
        operation: ClaimVerb,
        body: Bytes,
        batch: Option<&BatchResults>,
    ) -> ServiceReply {
        let done = match operation {
            ClaimVerb::Claim => {
                let read = read(&body, batch);
                let wait = self.state.service.waits.try_acquire().ok().filter(|_| batch.is_none());
                let read = read.and_then(|call| self.begin_request(&call, wait.is_some()));
                // A claim waits without its body.
                drop(body);
                match read {
                    Ok((request, owner)) => self.claim(request, owner, batch).await,
                    Err(reply) => Err(reply),
                }
            }
            ClaimVerb::Complete => match read(&body, batch) {
                Ok(call) => self.complete(call).await,
                Err(reply) => Err(reply),
            },
            ClaimVerb::Renew => match read(&body, batch) {
                Ok(call) => self.renew(call).await,
                Err(reply) => Err(reply),
            },
            ClaimVerb::Release => match read(&body, batch) {
                Ok(call) => self.release(call).await,
                Err(reply) => Err(reply),
            },
            ClaimVerb::Hold => match read(&body, batch) {
                Ok(call) => self.hold(call).await,
                Err(reply) => Err(reply),
            },
        };
        done.unwrap_or_else(|refused| *refused)
    }

    async fn claim(
        &self,
        request: BeginRequest,
        owner: OwnerToken,
        batch: Option<&BatchResults>,
    ) -> Result<ServiceReply, Refused> {
        if *self.state.draining.borrow() {
            return Err(refused(ApiError::draining()));
        }
        if batch.is_some_and(BatchResults::is_full) {
            return Err(batch_full());
        }
        let (id, lease) = (request.id.clone(), request.policy.lease);
        let mut draining = self.state.draining.clone();
        let end_wait = async {
            let _ = draining.wait_for(|is_draining| *is_draining).await;
        };
        match self.state.semel.remote_claim(request, owner, end_wait).await {
            RemoteClaim::Execute(grant) => {
                let held = HeldClaim { id, by: Claimant::new(grant.fence, owner), lease };
                self.granted(&held, grant, lease)
            }
            // With nothing left of its lease, a client does not begin: it gives the claim back.
            RemoteClaim::Lapsed(grant) => {
                let held = HeldClaim { id, by: Claimant::new(grant.fence, owner), lease };
                self.granted(&held, grant, Duration::ZERO)
            }
            RemoteClaim::Replayed(answer)
                if batch.is_some_and(|batch| !batch.admits(answer.as_bytes().len())) =>
            {
                Err(batch_full())
            }
            RemoteClaim::Replayed(answer) => match wire::replayed(&answer) {
                Some(members) => {
                    Ok(ServiceReply::done(format!("{{\"outcome\":\"replay\",{members}}}")))
                }
                None => Err(problem(Problem::OperationFailed, None)),
            },
            RemoteClaim::Ended => {
                let detail = "This attempt was released, and its attempt_id cannot be used again. \
                              Claim the key with a new attempt_id.";
                Err(problem(Problem::ClaimLost, Some(detail)))
            }
            RemoteClaim::Refused(Problem::StoreUnavailable) => {
                let detail = "The store did not answer in time. Send the same call again, with \
                              the same attempt_id.";
                Err(problem(Problem::StoreUnavailable, Some(detail)))
            }
            // The client repeats the claim, at another server.
            RemoteClaim::Refused(Problem::InProgress) if *self.state.draining.borrow() => {
                Err(refused(ApiError::draining()))
            }
            RemoteClaim::Refused(refusal) => Err(problem(refusal, None)),
        }
    }

    fn granted(
        &self,
        held: &HeldClaim,
        grant: Grant,
        lease_left: Duration,
    ) -> Result<ServiceReply, Refused> {
        let Some(sealed) = self.state.service.seal.seal(held) else {
            let detail = "The system has no randomness for a claim.";
            return Err(refused(ApiError::store_unavailable(detail)));
        };
        let (Grant { fence, attempt, .. }, lease_ms) = (grant, millis(lease_left));
        Ok(ServiceReply::done(format!(
            "{{\"outcome\":\"execute\",\"claim\":\"{sealed}\",\"fence\":{fence},\
             \"attempt\":{attempt},\"lease_ms\":{lease_ms}}}"
        )))
    }

    fn begin_request(
        &self,
        call: &ClaimCall<'_>,
        can_wait: bool,
    ) -> Result<(BeginRequest, OwnerToken), Refused> {
        let malformed = |detail: String| refused(ApiError::malformed(&detail));
        let scope = Scope::new(&call.scope).map_err(|error| malformed(error.to_string()))?;
        if !self.rules.is_open(&scope) {
            let detail = "A route uses this scope. Choose another one, or set `api = true` on \
                          the route.";
            return Err(refused(ApiError::scope_forbidden(detail)));
        }
        self.check_scope(&scope)?;
        let Some(caller) = self.credential.caller(call.caller.as_deref()) else {
            let detail = "This token does not allow the caller, or its name is not valid. A token \
                          with caller = \"*\" lets each claim name its caller.";
            return Err(problem(Problem::CallerUnidentified, Some(detail)));
        };
        let Ok(key) = Key::from_members([Some(&*call.key)]) else {
            return Err(problem(Problem::KeyMalformed, Some("`key` is empty. Nothing was done.")));
        };
        let owner = hex::<16>(&call.attempt_id)
            .ok_or_else(|| malformed("`attempt_id` is not 32 hexadecimal digits".to_owned()))?;
        let fingerprint = fingerprint(call).map_err(malformed)?;
        let mut policy = self.rules.policy(&scope, call).map_err(setting)?;
        if !can_wait {
            policy.wait = Duration::ZERO;
        }
        let id = RecordId::new(scope, caller, key);
        let mut request = BeginRequest::new(id, fingerprint, Arc::new(policy));
        request.about = About::new(call.about.as_deref().unwrap_or_default());
        Ok((request, OwnerToken::from_bytes(owner)))
    }

    async fn complete(&self, call: CompleteCall<'_>) -> Result<ServiceReply, Refused> {
        let held = self.open(&call.claim)?;
        let bytes_max = self.rules.result_bytes_max(&held.id.scope);
        let result = call.result.unwrap_or_default();
        let answer = result.answer(bytes_max);
        let answer = answer.map_err(|wrong| refused(ApiError::malformed(wrong)))?;
        let retained = answer.problem().is_none();
        let finished = self.finish(&held, Finish::complete(answer)).await?;
        let retained = retained && finished != RemoteFinish::NotRetained;
        Ok(ServiceReply::done(format!("{{\"outcome\":\"completed\",\"retained\":{retained}}}")))
    }

    async fn renew(&self, call: RenewCall) -> Result<ServiceReply, Refused> {
        let held = self.open(&call.claim)?;
        let lease = self.rules.renewed_lease(&held.id.scope, call.lease.as_deref(), held.lease);
        let lease = lease.map_err(setting)?;
        match self.state.semel.remote_renew(&held.id, held.by, lease).await {
            Ok(Fenced::Applied) => {
                let lease_ms = millis(lease);
                let body = format!("{{\"outcome\":\"renewed\",\"lease_ms\":{lease_ms}}}");
                Ok(ServiceReply::done(body))
            }
            Ok(Fenced::Lost) => Err(problem(Problem::ClaimLost, None)),
            Err(error) => Err(store_failed(&error)),
        }
    }

    async fn release(&self, call: ReleaseCall) -> Result<ServiceReply, Refused> {
        let held = self.open(&call.claim)?;
        let counted = call.counted.unwrap_or(true);
        let release = if counted { Release::Rerun } else { Release::NotSent };
        let reason = reason(call.reason.as_deref(), "released by its owner");
        self.finish(&held, Finish::release(release, reason)).await?;
        Ok(ServiceReply::done("{\"outcome\":\"released\"}".to_owned()))
    }

    async fn hold(&self, call: HoldCall) -> Result<ServiceReply, Refused> {
        let held = self.open(&call.claim)?;
        let reason = reason(call.reason.as_deref(), "held by its owner");
        self.finish(&held, Finish::hold(reason)).await?;
        Ok(ServiceReply::done("{\"outcome\":\"held\"}".to_owned()))
    }

    async fn finish(&self, held: &HeldClaim, finish: Finish) -> Result<RemoteFinish, Refused> {
        match self.state.semel.remote_finish(&held.id, held.by, &finish).await {
            Ok(RemoteFinish::Differs) => Err(problem(Problem::ResultDiffers, None)),
            Ok(RemoteFinish::Lost) => Err(problem(Problem::ClaimLost, None)),
            Ok(applied) => Ok(applied),
            Err(error) => Err(store_failed(&error)),
        }
    }

    /// What a claim says that this client may use.
    fn open(&self, text: &str) -> Result<HeldClaim, Refused> {
        let held = self.state.service.seal.open(text);
        let held = held.ok_or_else(|| problem(Problem::ClaimMalformed, None))?;
        self.check_scope(&held.id.scope)?;
        if !self.credential.allows_caller(&held.id.caller) {
            let detail = "The claim belongs to another caller than that of this token.";
            return Err(problem(Problem::CallerUnidentified, Some(detail)));
        }
        Ok(held)
    }

    fn check_scope(&self, scope: &Scope) -> Result<(), Refused> {
        if self.credential.allows_scope(scope) {
            return Ok(());
        }
        Err(refused(ApiError::scope_forbidden("This token does not allow the scope.")))
    }
}

/// How many bytes of results are in the answer to a batch.
#[derive(Default)]
struct BatchResults(AtomicUsize);

impl BatchResults {
    /// Adds a result if it fits. The first one always does, so that every batch makes progress.
    /// After one that does not fit, no other one does.
    fn admits(&self, bytes: usize) -> bool {
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        before == 0 || before.saturating_add(bytes) <= BATCH_RESULTS_BYTES_MAX
    }

    fn is_full(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= BATCH_RESULTS_BYTES_MAX
    }
}

/// Boxed, because it is much larger than a success.
type Refused = Box<ServiceReply>;

fn refused(error: ApiError) -> Refused {
    Box::new(error.into())
}

fn problem(problem: Problem, detail: Option<&str>) -> Refused {
    Box::new(ServiceReply::problem(problem, detail))
}

fn batch_full() -> Refused {
    let detail = "The results in this answer have 16 MiB. Send this claim again, with the same \
                  attempt_id, alone or in another batch.";
    problem(Problem::TooManyInFlight, Some(detail))
}

fn setting(error: SettingError) -> Refused {
    refused(match error {
        SettingError::Malformed(detail) => ApiError::malformed(&detail),
        SettingError::Exceeds(detail) => ApiError::limit_exceeded(&detail),
    })
}

fn store_failed(error: &StoreError) -> Refused {
    let detail = "Whether the call was recorded is unknown. Send the same call again.";
    let is_busy = error.kind() == StoreErrorKind::Busy;
    let refusal = if is_busy { Problem::TooManyInFlight } else { Problem::StoreUnavailable };
    problem(refusal, Some(detail))
}

fn reason(text: Option<&str>, default: &str) -> Reason {
    Reason::text(text.unwrap_or(default))
}

fn read<'a, T: CallBody + Deserialize<'a>>(
    body: &'a [u8],
    batch: Option<&BatchResults>,
) -> Result<T, Refused> {
    let call: T = json_object::from_slice(body)
        .map_err(|error| refused(ApiError::malformed(&error.to_string())))?;
    if call.op().is_some() && batch.is_none() {
        return Err(refused(ApiError::malformed("`op` belongs in a batch")));
    }
    Ok(call)
}

/// What must be equal in a repeat.
fn fingerprint(call: &ClaimCall<'_>) -> Result<Fingerprint, String> {
    match (call.payload, &call.fingerprint) {
        (Some(_), Some(_)) => Err("send `payload` or `fingerprint`, not both".to_owned()),
        (Some(payload), None) => once::fingerprint_of_json(payload.get().as_bytes())
            .map_err(|error| format!("`payload` cannot be used: {error}")),
        (None, Some(digits)) => {
            let hash = hex::<32>(digits);
            hash.map(Fingerprint::of_digest)
                .ok_or_else(|| "`fingerprint` is not 64 hexadecimal digits".to_owned())
        }
        (None, None) => Ok(once::no_fingerprint()),
    }
}

fn hex<const BYTES: usize>(digits: &str) -> Option<[u8; BYTES]> {
    HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).ok()?.try_into().ok()
}

/// Polls all futures in this task until each is done; the results are in their order.
pub(super) async fn join_all<T>(mut running: Vec<Pin<Box<impl Future<Output = T>>>>) -> Vec<T> {
    let mut done: Vec<Option<T>> = running.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut all_done = true;
        for (future, done) in running.iter_mut().zip(&mut done) {
            if done.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(result) => *done = Some(result),
                    Poll::Pending => all_done = false,
                }
            }
        }
        if all_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// The error of each reader of a body about an unknown member, which lists the known ones.
#[cfg(test)]
pub(crate) fn unknown_member_errors() -> Vec<(&'static str, String)> {
    fn error<'a, T: Deserialize<'a>>() -> String {
        let read = serde_json::from_str::<T>("{\"no such member\":1}");
        read.err().map(|error| error.to_string()).unwrap_or_default()
    }
    vec![
        ("Claim", error::<ClaimCall<'_>>()),
        ("Complete", error::<CompleteCall<'_>>()),
        ("ResultInput", error::<wire::ResultInput<'_>>()),
        ("Renew", error::<RenewCall>()),
        ("Release", error::<ReleaseCall>()),
        ("Hold", error::<HoldCall>()),
    ]
}
