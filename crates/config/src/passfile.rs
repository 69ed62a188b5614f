//! The password file of PostgreSQL (`PGPASSFILE`): one line per server,
//! `host:port:database:user:password`, where `*` is any.

/// The password of the first line that matches the URL of a server.
pub(super) fn password_for_url(file: &str, url: &str) -> Option<String> {
    let query = PassfileQuery::from_url(url);
    let lines = file.lines().filter(|line| !line.starts_with('#'));
    lines.map(fields).find_map(|fields| match &fields[..] {
        [host, port, database, user, password] if query.matches([host, port, database, user]) => {
            Some(password.clone())
        }
        _ => None,
    })
}

/// The parts of a URL that a line must match.
struct PassfileQuery<'a> {
    hosts: Vec<(&'a str, &'a str)>,
    database: &'a str,
    user: &'a str,
}

impl<'a> PassfileQuery<'a> {
    fn from_url(url: &'a str) -> Self {
        let (_, rest) = url.split_once("://").unwrap_or(("", url));
        let rest = rest.split_once('?').map_or(rest, |(rest, _)| rest);
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let host = |host: &'a str| match host.rsplit_once(':') {
            // A bracket after the last colon ends an IPv6 address without a port.
            Some((host, port)) if !port.contains(']') => (host.trim_matches(['[', ']']), port),
            Some(_) | None => (host.trim_matches(['[', ']']), "5432"),
        };
        let database = if database.is_empty() { user } else { database };
        Self { hosts: hosts.split(',').map(host).collect(), database, user }
    }

    fn matches(&self, [host, port, database, user]: [&String; 4]) -> bool {
        let is = |pattern: &str, value: &str| pattern == "*" || pattern == value;
        is(database, self.database)
            && is(user, self.user)
            && self.hosts.iter().any(|(name, number)| is(host, name) && is(port, number))
    }
}

/// The fields of a line. A backslash escapes a colon or a backslash.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match (character, fields.last_mut()) {
            (':', _) => fields.push(String::new()),
            ('\\', Some(field)) => field.extend(characters.next()),
            (character, Some(field)) => field.push(character),
            (_, None) => {}
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
        # host:port:database:user:password\n\
        db:5432:other:semel:wrong\n\
        db:5432:semel:semel:hunter\\:2\\\\\n\
        \\:\\:1:6432:*:*:local\n\
        short:line\n\
        *:*:*:report:last\n";

    #[test]
    fn the_first_matching_line_is_used() {
        for (url, expected) in [
            ("postgres://semel@db/semel", Some("hunter:2\\")),
            ("postgres://semel@db?schema=a/b", Some("hunter:2\\")),
            ("postgres://semel@standby,db/semel", Some("hunter:2\\")),
            ("postgres://semel@db:6432/semel", None),
            ("postgres://zoe@[::1]:6432/x", Some("local")),
            ("postgres://zoe@[::1]/x", None),
            ("postgres://report@anywhere/x", Some("last")),
            ("postgres://db/semel", None),
        ] {
            assert_eq!(password_for_url(FILE, url).as_deref(), expected, "{url}");
        }
    }
}
