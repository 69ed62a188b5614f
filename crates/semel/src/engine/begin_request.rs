//! What a front asks the engine to run once.

use std::{sync::Arc, time::Duration};

use semel_core::{About, Captured, Claim, Fingerprint, NodeName, OwnerToken, Policy, RecordId};

use crate::{arrivals::Sender, deadline::Deadline};

/// One operation that a front wants to run once.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BeginRequest {
    /// The record's identity.
    pub id: RecordId,
    /// Identifies the meaning of the request.
    pub fingerprint: Fingerprint,
    /// The policy of its route.
    pub policy: Arc<Policy>,
    /// Who sent the request: quotas of anonymous callers count by its address.
    pub sender: Sender,
    /// A description for operators.
    pub about: About,
    /// Values that the route captured from the request.
    pub captured: Captured,
    /// The deadline of the client. The operation does not begin after it, and the client does not
    /// wait beyond it; what has begun runs on.
    pub deadline: Option<Deadline>,
    /// Former identities of the record: scopes or callers that the route had before. A new
    /// operation is looked up there first, in this order. These records are only read.
    pub former: Vec<RecordId>,
    /// Whether the key must not be used for the first time: the server issued it, and it has
    /// expired. A first use is refused with `token-invalid`.
    pub known_key_only: bool,
    /// The record is kept at least this long, even if the retention of the policy is shorter.
    pub retention_min: Duration,
}

impl BeginRequest {
    /// An operation without a description or former identities.
    #[must_use]
    pub fn new(id: RecordId, fingerprint: Fingerprint, policy: Arc<Policy>) -> Self {
        Self {
            id,
            fingerprint,
            policy,
            sender: Sender::default(),
            about: About::default(),
            captured: Captured::default(),
            deadline: None,
            former: Vec::new(),
            known_key_only: false,
            retention_min: Duration::ZERO,
        }
    }

    pub(crate) fn into_claim(self, owner: OwnerToken, lease: Duration, node: &NodeName) -> Claim {
        let mut claim = Claim::by_policy(self.id, self.fingerprint, owner, &self.policy);
        claim.lease = lease;
        claim.retention = claim.retention.max(self.retention_min);
        claim.about = self.about;
        claim.captured = self.captured;
        claim.node.clone_from(node);
        claim
    }
}
