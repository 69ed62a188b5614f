//! Refuses requests that bypass a strict route by their spelling. An upstream may interpret such a
//! request as one that a route with a signature or a required key matches, while the gateway
//! matches another route.

use std::{borrow::Cow, sync::Arc};

use http::Method;

use semel_config::{
    Config, Guard, Match, Mode, Required, Route, Segment, Upstream, any_reading, contains_loosely,
    has_one_reading, normal_path, takes_path, takes_path_loosely,
};

/// What a route requires of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RouteRequirement {
    Nothing,
    Key,
    Signature,
}

/// The part of a request that has a second reading under which a stricter route matches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SecondReading {
    Path,
    Method,
    Host,
    /// The path has too many readings to check them all.
    TooMany,
}

impl SecondReading {
    /// The detail sent to the client.
    pub(crate) const fn detail(self) -> &'static str {
        match self {
            Self::Path => {
                "The path can be read in more than one way, and one of them is a path that \
                 requires a signature or an idempotency key. Send that path in its plain \
                 spelling: without encoded separators or control characters, semicolons, \
                 backslashes, dot segments or an extension, and in its own case."
            }
            Self::Method => {
                "The method is not in capitals. In capitals it requires a signature or an \
                 idempotency key at this path."
            }
            Self::Host => {
                "This path requires a signature or an idempotency key at another host of this \
                 service. Send the request to that host."
            }
            Self::TooMany => {
                "The path can be read in too many ways. Send it in its plain spelling: without \
                 encoded separators or control characters, semicolons, backslashes and dot \
                 segments."
            }
        }
    }
}

/// The routes of a configuration, as an upstream may interpret them.
#[derive(Debug)]
pub(crate) struct StrictRoutes {
    routes: Vec<LooseRoute>,
    /// Upstream of requests that match no route.
    fallback: Arc<Upstream>,
    /// Whether any route is strict.
    has_strict: bool,
    /// Whether a plain request may be a second reading of a strict route: one that names a host, or
    /// whose path is not plain itself.
    has_unusual: bool,
}

#[derive(Debug)]
struct LooseRoute {
    matches: Match,
    /// The readings of its path.
    paths: Vec<Vec<Segment>>,
    requirement: RouteRequirement,
    /// The methods that require a key.
    guarded: Vec<Method>,
    upstream: Arc<Upstream>,
}

/// A request to check against the strict routes.
struct Lookup<'r> {
    method: &'r Method,
    host: Option<&'r str>,
    /// Index of the route that matched it.
    taken: Option<usize>,
    /// What that route requires of it.
    required: RouteRequirement,
    /// Whether the configuration names exactly this path.
    is_exact: bool,
}

impl StrictRoutes {
    pub(crate) fn new(config: &Config, fallback: &Arc<Upstream>) -> Self {
        let routes: Vec<_> = config.routes.iter().map(LooseRoute::new).collect();
        let strict = || routes.iter().filter(|route| route.requirement > RouteRequirement::Nothing);
        let is_unusual = |route: &LooseRoute| {
            let path = Match { host: None, ..route.matches.clone() }.place_text();
            route.matches.host.is_some() || !has_one_reading(&path) || has_capital(&path)
        };
        let (has_strict, has_unusual) = (strict().next().is_some(), strict().any(is_unusual));
        Self { fallback: Arc::clone(fallback), routes, has_strict, has_unusual }
    }

    /// Whether a request that matched the route `taken`, or none, may be read as one that a
    /// stricter route matches.
    pub(crate) fn second_reading(
        &self,
        method: &Method,
        host: Option<&str>,
        path: &str,
        taken: Option<usize>,
    ) -> Option<SecondReading> {
        if !self.has_strict || (!self.has_unusual && is_plain(path) && is_upper_case(method)) {
            return None;
        }
        let own = taken.and_then(|number| self.routes.get(number));
        let required = own.map_or(RouteRequirement::Nothing, |own| own.requires(method));
        let is_exact = own.is_some_and(|own| {
            !own.matches.has_star() && matches!(normal_path(path), Cow::Borrowed(_))
        });
        let lookup = Lookup { method, host, taken, required, is_exact };
        let mut candidates = self.routes.iter().enumerate();
        if !candidates.any(|(number, route)| lookup.is_stricter(number, route)) {
            return None;
        }
        let is_taken = |reading: &str| self.is_taken_by_stricter(&lookup, reading);
        let any = if is_exact { Ok(is_taken(path)) } else { any_reading(path, is_taken) };
        match any {
            Ok(false) => None,
            Ok(true) => Some(self.cause(&lookup, path)),
            Err(_) => Some(SecondReading::TooMany),
        }
    }

    /// Whether the first route that matches this reading requires more than the matched route did.
    fn is_taken_by_stricter(&self, lookup: &Lookup<'_>, reading: &str) -> bool {
        let mut routes = self.routes.iter().enumerate();
        let first = routes.find(|(number, route)| {
            route.matches.takes_method_loosely(lookup.method)
                && (route.matches.takes_host(lookup.host)
                    || (lookup.is_stricter(*number, route)
                        && !lookup.is_meant_beside(route)
                        && self.is_reached(route, lookup.taken)))
                && route.takes(reading, lookup.is_exact)
        });
        first.is_some_and(|(number, route)| lookup.is_stricter(number, route))
    }

    /// Whether a request for a host that no route names reaches the upstream of this route, which
    /// may ignore the host.
    fn is_reached(&self, route: &LooseRoute, taken: Option<usize>) -> bool {
        let own = taken.and_then(|number| self.routes.get(number));
        let upstream = own.map_or(&self.fallback, |own| &own.upstream);
        own.is_none_or(|own| own.matches.host.is_none())
            && (upstream.tls, &upstream.authority)
                == (route.upstream.tls, &route.upstream.authority)
    }

    /// The part of the request that has the second reading.
    fn cause(&self, lookup: &Lookup<'_>, path: &str) -> SecondReading {
        let path = normal_path(path);
        let stricter = self.routes.iter().enumerate();
        let stricter = stricter.filter(|(number, route)| lookup.is_stricter(*number, route));
        let same_path = stricter.filter(|(_, route)| takes_path(&route.matches.path, &path));
        let hosts: Vec<bool> =
            same_path.map(|(_, route)| route.matches.takes_host(lookup.host)).collect();
        if !hosts.is_empty() && !hosts.contains(&true) {
            SecondReading::Host
        } else if !hosts.is_empty() && !is_upper_case(lookup.method) {
            SecondReading::Method
        } else {
            SecondReading::Path
        }
    }
}

impl Lookup<'_> {
    /// Whether a route may require of this request what the matched route did not. A signature for
    /// one route is not valid for another.
    fn is_stricter(&self, number: usize, route: &LooseRoute) -> bool {
        let requirement = route.requires_loosely(self.method);
        requirement > self.required
            || (requirement == RouteRequirement::Signature && self.taken != Some(number))
    }

    /// Whether the configuration names this very path for hosts besides that of a route, and
    /// requires as much there.
    fn is_meant_beside(&self, route: &LooseRoute) -> bool {
        self.is_exact && self.required >= route.requires_loosely(self.method)
    }
}

impl LooseRoute {
    fn new(route: &Route) -> Self {
        Self {
            paths: route.matches.path_readings(),
            requirement: route.guard.as_ref().map_or(RouteRequirement::Nothing, requirement),
            guarded: route.matches.guarded_methods(),
            matches: route.matches.clone(),
            upstream: Arc::clone(&route.upstream),
        }
    }

    fn takes(&self, reading: &str, exactly: bool) -> bool {
        if exactly {
            return takes_path(&self.matches.path, reading);
        }
        self.paths.iter().any(|path| takes_path_loosely(path, reading))
    }

    /// What the route requires of a request with this method.
    fn requires(&self, method: &Method) -> RouteRequirement {
        let is_free = self.requirement == RouteRequirement::Key && !self.guarded.contains(method);
        if is_free { RouteRequirement::Nothing } else { self.requirement }
    }

    /// What the route requires of this method, ignoring case.
    fn requires_loosely(&self, method: &Method) -> RouteRequirement {
        let is_free =
            self.requirement == RouteRequirement::Key && !contains_loosely(&self.guarded, method);
        let is_taken = self.matches.takes_method_loosely(method);
        if is_free || !is_taken { RouteRequirement::Nothing } else { self.requirement }
    }
}

/// A route in observe mode refuses nothing.
fn requirement(guard: &Guard) -> RouteRequirement {
    if guard.mode == Mode::Observe {
        RouteRequirement::Nothing
    } else if guard.signature.is_some() {
        RouteRequirement::Signature
    } else if guard.required == Required::Yes {
        RouteRequirement::Key
    } else {
        RouteRequirement::Nothing
    }
}

/// Whether a path has no second reading.
fn is_plain(path: &str) -> bool {
    has_one_reading(path) && !path.contains('.') && !has_capital(path)
}

fn has_capital(path: &str) -> bool {
    path.bytes().any(|byte| byte.is_ascii_uppercase())
}

fn is_upper_case(method: &Method) -> bool {
    !method.as_str().bytes().any(|byte| byte.is_ascii_lowercase())
}

#[cfg(test)]
mod tests;
