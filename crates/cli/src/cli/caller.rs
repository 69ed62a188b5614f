//! `semel caller`. Prints the stored name of a caller, so that its records can be listed.

use std::{
    io::{self, BufRead as _, Read as _},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context as _, anyhow, bail};
use http::{HeaderName, HeaderValue, Request, header, request::Parts};
use semel::core::Scope;
use semel_config::{CallerRule, Config, Guard, Overrides};
use semel_gateway::{read_client_certificate, unverified_callers};
use semel_tower::{ClientContext, Secret};
use serde_json::json;

use super::{
    config, lookup,
    output::{self, Output},
};
use crate::store;

/// The longest value, in bytes.
const VALUE_BYTES_MAX: u64 = 64 << 10;

/// Arguments of `semel caller`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration of the server
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    overrides: Overrides,
    /// The scope whose caller rules apply; needed if routes have different ones
    #[arg(long, value_parser = lookup::scope)]
    scope: Option<Scope>,
    /// The route whose caller rules apply, as its `match` says
    #[arg(long, value_name = "MATCH", conflicts_with = "scope")]
    route: Option<String>,
    /// Read the value of an Authorization header: a scheme and a credential
    #[arg(long, conflicts_with = "jwt")]
    authorization: bool,
    /// Read a JSON Web Token. It is not verified
    #[arg(long)]
    jwt: bool,
    /// Read the value of this header; may be repeated
    #[arg(long, value_name = "NAME")]
    header: Vec<HeaderName>,
    /// Read the value of this cookie; may be repeated
    #[arg(long, value_name = "NAME")]
    cookie: Vec<String>,
    /// Read the client certificate in this PEM file. It is not verified
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = match config::load(args.config.as_deref(), &args.overrides) {
        Ok(config) => config,
        Err(code) => return Ok(code),
    };
    let guard = guard(&config, args)?;
    let parts = args.request()?;
    let secret = if guard.callers.iter().any(CallerRule::hashes) {
        store::existing_caller_secret(&config)?
    } else {
        Secret::new([0; 32])?
    };
    let callers = unverified_callers(guard, &secret)?;
    let caller = callers.name_unverified(&parts).map_err(|detail| anyhow!(detail))?;
    if guard.callers.iter().any(CallerRule::verifies) {
        output::note("nothing was verified: a request with these values may be refused");
    }
    let output = Output::new(args.json);
    if args.json {
        output.json(&json!({ "scope": guard.scope.as_str(), "caller": caller.as_str() }))?;
    } else {
        output.line(caller.as_str())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The guard whose caller rules apply.
fn guard<'a>(config: &'a Config, args: &Args) -> anyhow::Result<&'a Guard> {
    let chosen = config
        .routes
        .iter()
        .filter(|route| args.route.as_ref().is_none_or(|text| route.matches.to_string() == *text));
    let guards = chosen.filter_map(|route| route.guard.as_ref());
    let guards = guards.filter(|guard| args.scope.as_ref().is_none_or(|it| guard.scope == *it));
    let guards: Vec<&Guard> = guards.collect();
    let first = guards.first().context("no guarded route of the configuration is meant")?;
    if guards.iter().any(|guard| guard.callers != first.callers) {
        let scopes: Vec<&str> = guards.iter().map(|guard| guard.scope.as_str()).collect();
        bail!(
            "routes have different caller rules: name one with --route, or its scope with --scope \
             ({})",
            scopes.join(", ")
        );
    }
    Ok(first)
}

impl Args {
    /// A request with the values on the standard input, one line each. Credentials do not belong
    /// on a command line, where other users can read them. A certificate is public.
    fn request(&self) -> anyhow::Result<Parts> {
        let mut lines = io::stdin().lock();
        let mut value = |what: &str| -> anyhow::Result<String> {
            let mut line = String::new();
            let read = lines.by_ref().take(VALUE_BYTES_MAX).read_line(&mut line);
            read.with_context(|| format!("the value of {what} cannot be read"))?;
            let line = line.trim_end_matches(['\n', '\r']).to_owned();
            if line.is_empty() {
                bail!("write the value of {what} to the standard input");
            }
            Ok(line)
        };
        let invalid = |what: &str| format!("the value of {what} is no header value");
        let (mut parts, ()) = Request::new(()).into_parts();
        let mut add = |name: HeaderName, text: String| -> anyhow::Result<()> {
            let line = HeaderValue::try_from(text).map_err(|_| anyhow!(invalid(name.as_str())))?;
            parts.headers.append(name, line);
            Ok(())
        };
        if self.authorization {
            add(header::AUTHORIZATION, value("Authorization")?)?;
        }
        if self.jwt {
            add(header::AUTHORIZATION, format!("Bearer {}", value("the token")?))?;
        }
        for name in &self.header {
            add(name.clone(), value(name.as_str())?)?;
        }
        for name in &self.cookie {
            add(header::COOKIE, format!("{name}={}", value(name)?))?;
        }
        if let Some(path) = &self.certificate {
            let mut client = ClientContext::default();
            client.certificate = Some(Arc::new(read_client_certificate(path)?));
            parts.extensions.insert(client);
        } else if parts.headers.is_empty() {
            bail!(
                "say what to read: --authorization, --jwt, --header NAME, --cookie NAME or \
                 --certificate FILE"
            );
        }
        Ok(parts)
    }
}
