//! Tells a service manager such as systemd when the server is ready, reloads or stops, by the
//! protocol of `sd_notify`: a datagram to the socket that `NOTIFY_SOCKET` names.
//!
//! Nothing depends on the messages. If they cannot be sent, the server runs on.

use std::{
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

/// The connection to the service manager; without one, the methods do nothing.
#[derive(Debug, Default)]
pub(crate) struct Supervisor(Option<(UnixDatagram, SocketAddr)>);

impl Supervisor {
    /// The service manager at the socket that `NOTIFY_SOCKET` names, if it is set.
    pub(crate) fn at(socket: Option<&str>) -> Self {
        Self(socket.and_then(connect))
    }

    /// The server accepts requests.
    pub(crate) fn notify_ready(&self) {
        self.send("READY=1\nSTATUS=serving");
    }

    /// The server reloads its configuration. `notify_ready` ends it.
    pub(crate) fn notify_reloading(&self) {
        let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
        let micros = now.as_micros();
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=reloading"));
    }

    /// The server finishes its requests and stops.
    pub(crate) fn notify_stopping(&self) {
        self.send("STOPPING=1\nSTATUS=draining in-flight requests");
    }

    fn send(&self, message: &str) {
        let Some((socket, address)) = &self.0 else { return };
        if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
            tracing::warn!("the service manager cannot be notified: {error}");
        }
    }
}

/// The socket at a path, or in the abstract namespace if the name begins with `@`.
fn connect(name: &str) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    };
    let socket = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    Some((socket.ok()?, address.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn each_message_arrives_at_the_named_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let supervisor = Supervisor(connect(path.to_str().unwrap()));
        supervisor.notify_ready();
        assert!(received(&socket).starts_with("READY=1\n"));
        supervisor.notify_reloading();
        let reloading = received(&socket);
        assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
        supervisor.notify_stopping();
        assert!(received(&socket).starts_with("STOPPING=1\n"));
    }

    #[test]
    fn a_socket_in_the_abstract_namespace_is_found() {
        let name = format!("semel-supervisor-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        Supervisor(connect(&format!("@{name}"))).notify_ready();
        assert!(received(&socket).starts_with("READY=1\n"));
    }

    #[test]
    fn a_missing_service_manager_is_no_error() {
        Supervisor(None).notify_ready();
        Supervisor(connect("/nowhere/notify")).notify_stopping();
    }
}
