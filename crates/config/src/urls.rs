//! The URLs of a store and of a cache. They are printed without their password.

use std::{
    fmt::{self, Write as _},
    path::PathBuf,
};

use super::{passfile, read::FromText, values::EnvName};

/// Looks up an environment variable.
pub(crate) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Where records live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// `sqlite:PATH`
    Sqlite(PathBuf),
    /// `postgres://…`, which any number of gateways may share.
    Postgres(ServerUrl),
    /// `memory:`, which forgets everything when the process ends.
    Memory,
}

/// Prints the URL without its password.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(server) => server.fmt(f),
            Self::Memory => f.write_str("memory:"),
        }
    }
}

/// The cache in front of the store: `redis://…` or `rediss://…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheUrl(pub ServerUrl);

/// The URL of a server that may ask for a password. It is shown without it.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerUrl {
    /// Everything but the password.
    bare: String,
    password: Password,
    /// The environment variable that held it, if it was not written out.
    variable: Option<String>,
}

/// The password of a server.
#[derive(Clone, PartialEq, Eq)]
pub enum Password {
    /// No password: the server trusts the client or authenticates it by other means.
    None,
    /// This password, percent-encoded.
    Known(String),
    /// A line of this file, as PostgreSQL's own programs read it.
    InFile(PathBuf),
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Known(_) => f.write_str("Known(…)"),
            Self::InFile(path) => f.debug_tuple("InFile").field(path).finish(),
        }
    }
}

/// Advice for a URL with a password.
const USE_ENV: &str = "put the whole URL in an environment variable and write `env:NAME` here";

/// A URL, or the environment variable that holds it.
#[derive(Clone, Debug)]
pub(super) enum UrlOrEnv<T> {
    Out(T),
    In(EnvName),
}

/// A URL that may be in a file or in a variable.
pub(super) trait Url: Sized {
    /// How to write it, with an example.
    const EXPECTED: &'static str;
    /// The variables that its own programs take a password from, and a file with passwords.
    const PASSWORD: &'static str;

    /// The URL, or what is wrong with it, without repeating it.
    fn parse(text: &str) -> Result<Self, String>;

    /// The server, if it is one.
    fn server(&mut self) -> Option<&mut ServerUrl>;
}

impl<T: Url> FromText for UrlOrEnv<T> {
    const EXPECTED: &'static str = T::EXPECTED;

    fn parse(text: &str) -> Result<Self, String> {
        if let Some(name) = text.strip_prefix("env:") {
            return <EnvName as FromText>::parse(name).map(Self::In);
        }
        let mut url = T::parse(text)?;
        match url.server().map(|server| &server.password) {
            Some(Password::Known(_)) => Err(format!(
                "a password must not be written here, where others can read it: set {}, or \
                 {USE_ENV}",
                T::PASSWORD
            )),
            _ => Ok(Self::Out(url)),
        }
    }
}

impl<T: Url> UrlOrEnv<T> {
    /// The URL itself, with the password that the environment has for it.
    pub(super) fn resolve(&self, env: Env<'_>) -> Result<T, String>
    where
        T: Clone,
    {
        let mut url = match self {
            Self::Out(url) => url.clone(),
            Self::In(EnvName(name)) => {
                let text = env(name).filter(|text| !text.is_empty());
                let text = text.ok_or_else(|| format!("the variable {name} is not set"))?;
                let mut url = T::parse(&text)
                    .map_err(|wrong| format!("the value of {name} is invalid: {wrong}"))?;
                if let Some(server) = url.server() {
                    server.variable = Some(name.clone());
                }
                url
            }
        };
        if let Some(server) = url.server() {
            server.find_password(env);
        }
        Ok(url)
    }
}

/// The store that was named on a command line.
pub fn store_url(text: &str, env: Env<'_>) -> Result<StoreUrl, String> {
    <UrlOrEnv<StoreUrl> as FromText>::parse(text)?.resolve(env)
}

/// The cache that was named on a command line.
pub fn cache_url(text: &str, env: Env<'_>) -> Result<CacheUrl, String> {
    <UrlOrEnv<CacheUrl> as FromText>::parse(text)?.resolve(env)
}

impl Url for StoreUrl {
    const EXPECTED: &'static str = "the URL of a store: \"sqlite:semel.db\"";
    const PASSWORD: &'static str = "PGPASSWORD or PGPASSFILE";

    fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("sqlite", ":memory:")) => Err("a store in memory is `memory:`".to_owned()),
            Some(("sqlite", path)) if path.is_empty() || path.starts_with("//") => {
                Err("write the path right after the colon: `sqlite:semel.db`".to_owned())
            }
            Some(("sqlite", path)) => Ok(Self::Sqlite(path.into())),
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
                let server = ServerUrl::parse(text)?;
                semel_postgres::Options::parse(&server.bare).map_err(|wrong| wrong.to_string())?;
                Ok(Self::Postgres(server))
            }
            Some(("postgres" | "postgresql", _)) => {
                Err("write two slashes after the colon: `postgres://semel@db/semel`".to_owned())
            }
            _ => Err("a store is `sqlite:PATH`, `postgres://USER@HOST/DATABASE`, `memory:`, or \
                      `env:NAME` for the variable that holds one of these"
                .to_owned()),
        }
    }

    fn server(&mut self) -> Option<&mut ServerUrl> {
        match self {
            Self::Postgres(server) => Some(server),
            Self::Sqlite(_) | Self::Memory => None,
        }
    }
}

impl Url for CacheUrl {
    const EXPECTED: &'static str = "the URL of a cache: \"redis://cache:6379\"";
    const PASSWORD: &'static str = "REDISCLI_AUTH";

    fn parse(text: &str) -> Result<Self, String> {
        match text.split_once("://") {
            Some(("redis" | "rediss", _)) => {
                let server = ServerUrl::parse(text)?;
                check_redis(&server.bare)?;
                Ok(Self(server))
            }
            _ => Err("a cache is `redis://HOST`, `rediss://HOST`, or `env:NAME` for the variable \
                      that holds one of these"
                .to_owned()),
        }
    }

    fn server(&mut self) -> Option<&mut ServerUrl> {
        Some(&mut self.0)
    }
}

#[cfg(feature = "redis")]
fn check_redis(url: &str) -> Result<(), String> {
    semel_redis::Options::parse(url).map(drop).map_err(|wrong| wrong.to_string())
}

#[cfg(not(feature = "redis"))]
fn check_redis(_: &str) -> Result<(), String> {
    Err("this program was built without Redis: build it with the feature `redis`".to_owned())
}

impl ServerUrl {
    fn parse(text: &str) -> Result<Self, String> {
        let (bare, password) = without_password(text)?;
        let password = password.map_or(Password::None, Password::Known);
        Ok(Self { bare, password, variable: None })
    }

    /// Looks the password up where the server's own programs do.
    fn find_password(&mut self, env: Env<'_>) {
        let known = |name| env(name).filter(|text| !text.is_empty());
        if self.password != Password::None {
            return;
        }
        self.password = if self.is_postgres() {
            let file = known("PGPASSFILE").map(|file| Password::InFile(file.into()));
            known("PGPASSWORD").map(|text| Password::Known(encode(&text))).or(file)
        } else {
            known("REDISCLI_AUTH").map(|text| Password::Known(encode(&text)))
        }
        .unwrap_or(Password::None);
    }

    fn is_postgres(&self) -> bool {
        self.bare.starts_with("postgres")
    }

    /// What is known of its password.
    pub fn password(&self) -> &Password {
        &self.password
    }

    /// The URL to connect with, which must not be shown. `file` is what the file with passwords
    /// says, if they are in one.
    pub fn to_connect(&self, file: Option<&str>) -> String {
        let found = file.and_then(|file| passfile::password_for_url(file, &self.bare));
        let found = found.map(|password| encode(&password));
        let password = match (&self.password, &found) {
            (Password::Known(password), _) | (Password::InFile(_), Some(password)) => password,
            (Password::None, _) | (Password::InFile(_), None) => return self.bare.clone(),
        };
        if self.is_postgres() {
            // Not before the host: there it would need a user.
            let sign = if self.bare.contains('?') { '&' } else { '?' };
            return format!("{}{sign}password={password}", self.bare);
        }
        let (scheme, rest) = self.bare.split_once("://").unwrap_or(("redis", &self.bare));
        match rest.split_once('@') {
            Some((user, rest)) => format!("{scheme}://{user}:{password}@{rest}"),
            None => format!("{scheme}://:{password}@{rest}"),
        }
    }
}

/// Prints the URL without its password.
impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.variable {
            Some(name) => write!(f, "env:{name}"),
            None => f.write_str(&self.bare),
        }
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerUrl({self})")
    }
}

/// Takes the password out of a URL: before the host, or as a parameter.
fn without_password(url: &str) -> Result<(String, Option<String>), String> {
    let (scheme, rest) = url.split_once("://").unwrap_or((url, ""));
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (path, query) = match tail.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (tail, None),
    };
    // An unescaped `/` or `?` in a password moves the end of the authority into it.
    let is_cut = |port: &str| !port.bytes().all(|byte| byte.is_ascii_digit());
    let cut = authority.rsplit_once(':').is_some_and(|(_, port)| is_cut(port));
    if url.contains('#') || !authority.contains('@') && (path.contains('@') || cut) {
        return Err(
            "this has no host; in a password, write `/` as %2F, `?` as %3F, `#` as %23 and \
                    `@` as %40"
                .to_owned(),
        );
    }
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (Some(user), hosts),
        None => (None, authority),
    };
    let (user, mut password) = match user.and_then(|user| user.split_once(':')) {
        Some((user, password)) => (Some(user), Some(password)),
        None => (user, None),
    };
    let mut kept = Vec::new();
    for parameter in query.into_iter().flat_map(|query| query.split('&')) {
        match parameter.split_once('=') {
            Some(("password", value)) => password = Some(value),
            _ => kept.push(parameter),
        }
    }
    let user = user.filter(|user| !user.is_empty()).map(|user| format!("{user}@"));
    let user = user.unwrap_or_default();
    let query = if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) };
    let password = password.filter(|password| !password.is_empty());
    Ok((format!("{scheme}://{user}{hosts}{path}{query}"), password.map(str::to_owned)))
}

/// A text as a URL holds it.
fn encode(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        let value = match name {
            "STORE" => "postgres://semel:hunter%402@db/semel?schema=s",
            "PARAMETER" => "postgresql://db/semel?password=hunter2&schema=s",
            "CACHE" => "rediss://app:hunter2@cache:6380/1",
            "CUT" => "postgres://semel:hunt/er2@db/semel",
            "WRONG" => "postgres://semel:hunter2@db/semel?shema=s",
            "EMPTY" => "",
            _ => return None,
        };
        Some(value.to_owned())
    }

    fn passwords(name: &str) -> Option<String> {
        match name {
            "PGPASSWORD" | "REDISCLI_AUTH" => Some("hunter & 2".to_owned()),
            _ => None,
        }
    }

    fn connects(store: &StoreUrl) -> String {
        let StoreUrl::Postgres(server) = store else { panic!("{store:?}") };
        server.to_connect(None)
    }

    #[test]
    fn a_password_is_used_and_never_shown() {
        let store = store_url("env:STORE", &env).unwrap();
        assert_eq!(format!("{store:?}"), "Postgres(ServerUrl(env:STORE))");
        assert_eq!(connects(&store), "postgres://semel@db/semel?schema=s&password=hunter%402");
        let store = store_url("env:PARAMETER", &env).unwrap();
        assert_eq!(connects(&store), "postgresql://db/semel?schema=s&password=hunter2");
        let CacheUrl(cache) = cache_url("env:CACHE", &env).unwrap();
        assert_eq!(cache.to_string(), "env:CACHE");
        assert_eq!(cache.to_connect(None), "rediss://app:hunter2@cache:6380/1");
    }

    #[test]
    fn a_password_comes_from_where_other_programs_take_it() {
        let store = store_url("postgres://semel@a,b:6432/semel", &passwords).unwrap();
        assert_eq!(format!("{store:?}"), "Postgres(ServerUrl(postgres://semel@a,b:6432/semel))");
        let expected = "postgres://semel@a,b:6432/semel?password=hunter%20%26%202";
        assert_eq!(connects(&store), expected);
        let CacheUrl(cache) = cache_url("redis://cache", &passwords).unwrap();
        assert_eq!(cache.to_connect(None), "redis://:hunter%20%26%202@cache");
        let CacheUrl(cache) = cache_url("redis://app@cache", &passwords).unwrap();
        assert_eq!(cache.to_connect(None), "redis://app:hunter%20%26%202@cache");
        let store = store_url("postgres://semel@db/semel", &env).unwrap();
        assert_eq!(connects(&store), "postgres://semel@db/semel");
    }

    #[test]
    fn a_password_file_is_used_last() {
        let file = |name: &str| (name == "PGPASSFILE").then(|| "pass".to_owned());
        let store = store_url("postgres://semel@db/semel", &file).unwrap();
        let StoreUrl::Postgres(server) = &store else { panic!("{store:?}") };
        assert!(matches!(server.password(), Password::InFile(path) if path.ends_with("pass")));
        let found = server.to_connect(Some("*:*:*:semel:hunter2\n"));
        assert_eq!(found, "postgres://semel@db/semel?password=hunter2");
        assert_eq!(server.to_connect(Some("*:*:*:other:x\n")), "postgres://semel@db/semel");
    }

    #[test]
    fn errors_do_not_contain_the_password() {
        for (text, expected) in [
            ("postgres://semel:hunter2@db/semel", "PGPASSWORD or PGPASSFILE"),
            ("postgres://db/semel?password=hunter2", "write `env:NAME` here"),
            ("postgres://semel:hunt/er2@db/semel", "write `/` as %2F"),
            ("postgres://semel:hunt?er2@db/semel", "write `/` as %2F"),
            ("postgres://semel:hunt#er2@db/semel", "write `/` as %2F"),
            ("postgres:semel", "two slashes"),
            ("mysql://semel:hunter2@db", "a store is"),
            ("env:CUT", "the value of CUT is invalid"),
            ("env:WRONG", "schema"),
            ("env:EMPTY", "the variable EMPTY is not set"),
            ("env:hunter2", "never the secret itself"),
        ] {
            let wrong = store_url(text, &env).unwrap_err();
            assert!(wrong.contains(expected), "{text}: {wrong}");
            assert!(!wrong.contains("hunt") && !wrong.contains("er2"), "{text}: {wrong}");
        }
        let wrong = cache_url("redis://:hunter2@cache", &env).unwrap_err();
        assert!(wrong.contains("REDISCLI_AUTH") && !wrong.contains("hunter2"), "{wrong}");
        assert!(cache_url("memcached://cache", &env).is_err());
    }

    #[cfg(not(feature = "redis"))]
    #[test]
    fn a_cache_is_refused_without_redis() {
        let refused = cache_url("redis://cache", &|_| None).unwrap_err();
        assert!(refused.to_string().contains("built without Redis"), "{refused}");
    }
}
