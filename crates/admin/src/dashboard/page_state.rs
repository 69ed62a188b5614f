//! What the pages share.

use std::{fmt, ops::Deref, sync::Arc};

use semel_config::TrustedHeader;

use super::{
    feed::LiveFeed,
    history::{Gauges, History},
    previews::Previews,
    sessions::{FormKey, Sessions, SignInThrottle},
    summary::ConfigSummary,
};
use crate::state::ApiState;

/// The users of the dashboard, and what it shows beside the API's state.
pub struct Dashboard {
    pub(super) sessions: Sessions,
    pub(super) sign_in_throttle: SignInThrottle,
    pub(super) form_key: FormKey,
    pub(super) previews: Previews,
    pub(super) live: LiveFeed,
    pub(super) config: Arc<ConfigSummary>,
    pub(super) trusted_header: Option<TrustedHeader>,
}

impl fmt::Debug for Dashboard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dashboard").finish_non_exhaustive()
    }
}

impl Dashboard {
    /// A dashboard that shows this configuration. Users may sign in with a token of the API, and by
    /// `trusted_header`.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers.
    pub fn new(
        config: Arc<ConfigSummary>,
        trusted_header: Option<TrustedHeader>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            sessions: Sessions::default(),
            sign_in_throttle: SignInThrottle::default(),
            form_key: FormKey::random()?,
            previews: Previews::default(),
            live: LiveFeed::default(),
            config,
            trusted_header,
        })
    }
}

/// The state of a page: the API's, and the dashboard's own.
pub(crate) struct PageState {
    api: Arc<ApiState>,
    dashboard: Dashboard,
}

impl PageState {
    pub(crate) const fn new(api: Arc<ApiState>, dashboard: Dashboard) -> Self {
        Self { api, dashboard }
    }

    pub(super) const fn dashboard(&self) -> &Dashboard {
        &self.dashboard
    }

    /// Adds the counters of now, and reads the history.
    pub(super) fn with_history<T>(&self, read: impl FnOnce(&History) -> T) -> T {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let (held, is_complete) = self.metrics.held_records();
        let gauges = Gauges {
            in_flight: number(self.semel.in_flight()),
            waiting: number(self.semel.waiting()),
            held: held.iter().map(|(_, _, count)| count).sum(),
            held_is_cut: !is_complete,
        };
        self.dashboard.live.with_history(self.metrics.totals(), gauges, read)
    }
}

impl Deref for PageState {
    type Target = ApiState;

    fn deref(&self) -> &ApiState {
        &self.api
    }
}
