//! The attacks. Each takes as much as it can of one thing, from one address, and takes again what
//! it lost.

mod bodies;
mod http1;
mod http2;

use std::{
    future::pending,
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio::{
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::sleep,
};

use self::http2::{ANSWERS, EVENTS, HEADS, REPLAYS, STALLED, UNGUARDED};

/// How long an attacker waits before it takes again what it lost.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Bodies that stall, and compressed ones, are a little shorter than a guarded body may be.
const LARGE_BYTES: usize = (1 << 20) - 1;

/// A new key for every request.
static KEYS: AtomicUsize = AtomicUsize::new(0);

/// One way to take more than one's share.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Attack {
    None,
    StreamsWithoutBodies,
    SocketsWithoutBodies,
    ContradictoryLengths,
    DrippingBodies,
    IdleConnections,
    SilentTunnels,
    StalledUnguardedBodies,
    StalledLargeBodies,
    UntakenAnswers,
    UntakenReplays,
    UntakenUnguardedAnswers,
    UnreadSockets,
    CompressedBodies,
    GzipMembers,
    ForgedEventsWithoutBodies,
    ForgedEvents,
    NewCallers,
    HeldKeys,
    Waiters,
    RapidResets,
    PathsWithManyReadings,
}

impl Attack {
    pub(super) const ALL: [Self; 22] = [
        Self::None,
        Self::StreamsWithoutBodies,
        Self::SocketsWithoutBodies,
        Self::ContradictoryLengths,
        Self::DrippingBodies,
        Self::IdleConnections,
        Self::SilentTunnels,
        Self::StalledUnguardedBodies,
        Self::StalledLargeBodies,
        Self::UntakenAnswers,
        Self::UntakenReplays,
        Self::UntakenUnguardedAnswers,
        Self::UnreadSockets,
        Self::CompressedBodies,
        Self::GzipMembers,
        Self::ForgedEventsWithoutBodies,
        Self::ForgedEvents,
        Self::NewCallers,
        Self::HeldKeys,
        Self::Waiters,
        Self::RapidResets,
        Self::PathsWithManyReadings,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::StreamsWithoutBodies => "HTTP/2 streams without bodies",
            Self::SocketsWithoutBodies => "HTTP/1.1 heads without bodies",
            Self::ContradictoryLengths => "HTTP/2 content-length 0 with data",
            Self::DrippingBodies => "dripping bodies",
            Self::IdleConnections => "idle connections",
            Self::SilentTunnels => "silent tunnels",
            Self::StalledUnguardedBodies => "stalled unguarded bodies",
            Self::StalledLargeBodies => "stalled large bodies",
            Self::UntakenAnswers => "first answers not taken",
            Self::UntakenReplays => "replays not taken",
            Self::UntakenUnguardedAnswers => "unguarded answers not taken",
            Self::UnreadSockets => "sockets that are not read",
            Self::CompressedBodies => "compressed bodies",
            Self::GzipMembers => "gzip of empty members",
            Self::ForgedEventsWithoutBodies => "forged events without bodies",
            Self::ForgedEvents => "forged events",
            Self::NewCallers => "a new caller and key each time",
            Self::HeldKeys => "keys with unknown outcomes",
            Self::Waiters => "waiters for one key",
            Self::RapidResets => "rapid resets",
            Self::PathsWithManyReadings => "paths with many readings",
        }
    }

    /// Attacks until it is dropped.
    pub(super) async fn run(self, to: SocketAddr) {
        let mut all = JoinSet::new();
        let mut spawn = |count: usize, one: fn(SocketAddr, usize) -> BoxedAttack| {
            (0..count).for_each(|number| drop(all.spawn(one(to, number))));
        };
        match self {
            Self::None => {}
            Self::StreamsWithoutBodies => spawn(3, |to, _| Box::pin(http2::streams(to, HEADS))),
            Self::SocketsWithoutBodies => spawn(150, |to, n| Box::pin(http1::heads(to, n))),
            Self::ContradictoryLengths => spawn(8, |to, _| Box::pin(http2::contradictions(to))),
            Self::DrippingBodies => spawn(280, |to, n| Box::pin(http1::drips(to, n))),
            Self::IdleConnections => spawn(400, |to, n| Box::pin(http1::idle(to, n))),
            Self::SilentTunnels => spawn(400, |to, _| Box::pin(http1::tunnel(to))),
            Self::StalledUnguardedBodies => spawn(300, |to, _| Box::pin(http1::stalled(to))),
            Self::StalledLargeBodies => spawn(6, |to, _| Box::pin(http2::streams(to, STALLED))),
            Self::UntakenAnswers => spawn(2, |to, _| Box::pin(http2::streams(to, ANSWERS))),
            Self::UntakenReplays => spawn(4, |to, _| Box::pin(http2::streams(to, REPLAYS))),
            Self::UntakenUnguardedAnswers => {
                spawn(2, |to, _| Box::pin(http2::streams(to, UNGUARDED)));
            }
            Self::UnreadSockets => spawn(200, |to, n| Box::pin(http1::unread(to, n))),
            Self::CompressedBodies => {
                spawn(16, |to, _| Box::pin(http1::repeated(to, bodies::compressed())));
            }
            Self::GzipMembers => {
                spawn(8, |to, _| Box::pin(http1::repeated(to, bodies::empty_members())));
            }
            Self::ForgedEventsWithoutBodies => {
                spawn(3, |to, _| Box::pin(http2::streams(to, EVENTS)));
            }
            Self::ForgedEvents => spawn(8, |to, _| Box::pin(http1::forged(to))),
            Self::NewCallers => spawn(8, |to, _| Box::pin(http1::repeated(to, Vec::new()))),
            Self::HeldKeys => spawn(8, |to, n| Box::pin(http1::held(to, n))),
            Self::Waiters => spawn(250, |to, _| Box::pin(http1::waiter(to))),
            Self::RapidResets => spawn(4, |to, _| Box::pin(http2::resets(to))),
            Self::PathsWithManyReadings => spawn(8, |to, _| Box::pin(http1::many_readings(to))),
        }
        while all.join_next().await.is_some() {}
        pending().await
    }
}

type BoxedAttack = Pin<Box<dyn Future<Output = ()> + Send>>;

fn new_key() -> String {
    format!("attack-{}", KEYS.fetch_add(1, Ordering::Relaxed))
}

/// Connects from the address of the attackers.
pub(super) async fn connect(to: SocketAddr) -> TcpStream {
    connect_with(to, |_| Ok(())).await
}

/// Connects with a socket that was prepared.
async fn connect_with(
    to: SocketAddr,
    prepare: impl Fn(&TcpSocket) -> std::io::Result<()>,
) -> TcpStream {
    loop {
        let connected = async {
            let socket = TcpSocket::new_v4()?;
            prepare(&socket)?;
            socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
            let stream = socket.connect(to).await?;
            stream.set_nodelay(true)?;
            std::io::Result::Ok(stream)
        };
        match connected.await {
            Ok(stream) => return stream,
            Err(_) => sleep(AGAIN_AFTER).await,
        }
    }
}
