//! What the dashboard shows of the configuration. A reload replaces it.

use std::sync::{Arc, PoisonError, RwLock};

use semel_config::{Config, RouteDescription};

/// The policy in force, and where records are.
#[derive(Debug, Default)]
pub struct ConfigSummary(RwLock<Arc<SummaryTable>>);

#[derive(Debug, Default)]
pub(super) struct SummaryTable {
    pub(super) routes: Vec<RouteDescription>,
    /// What may be unintended.
    pub(super) notes: Vec<String>,
    /// Settings of the store and the listeners, by name.
    pub(super) settings: Vec<(&'static str, String)>,
}

impl ConfigSummary {
    /// The summary of this configuration.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let summary = Self::default();
        summary.set(config);
        summary
    }

    /// Replaces the routes by those of this configuration. Store and listeners stay: a change of
    /// them needs a restart.
    pub fn set(&self, config: &Config) {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let settings = match current.settings.is_empty() {
            true => settings(config),
            false => current.settings.clone(),
        };
        let (routes, notes) = (config.route_descriptions(), config.notes());
        *current = Arc::new(SummaryTable { routes, notes, settings });
    }

    pub(super) fn get(&self) -> Arc<SummaryTable> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn settings(config: &Config) -> Vec<(&'static str, String)> {
    let cache = config.cache.as_ref().map(|cache| cache.0.to_string());
    let listen: Vec<String> = config.gateway.listen.iter().map(ToString::to_string).collect();
    let upstream = config.gateway.upstream.as_ref().map(|upstream| upstream.url());
    let audit = config.api.as_ref().map(|api| api.audit.display().to_string());
    let settings = [
        ("Store", Some(config.store.to_string())),
        ("Cache", cache),
        ("Gateway", upstream.is_some().then(|| listen.join(", "))),
        ("Upstream", upstream),
        ("Audit log", audit),
        ("Sweep", Some(format!("every {}", semel_config::time_text(config.sweep_every)))),
    ];
    settings.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}
