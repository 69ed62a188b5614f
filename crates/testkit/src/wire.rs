//! A faulty TCP proxy: it cuts, delays and half-closes connections, on demand or at random by a
//! seed.
//!
//! A connection breaks at every possible place: before a piece arrives, after a part of it, after
//! all of it (so that the other side acts and its reply is lost), in one direction only, or by
//! silence.
//!
//! ```no_run
//! use semel_testkit::{seed, wire::Proxy};
//!
//! let proxy = Proxy::start(5432);
//! let url = format!("postgres://semel@127.0.0.1:{}/semel", proxy.port());
//! proxy.chaos(seed()); // from now on, about one piece in twenty is cut or delayed
//! proxy.calm();
//! proxy.cut(); // every connection, now
//! # drop(url);
//! ```

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// Under chaos, one piece in this many is cut or delayed.
const HARM_ONE_IN: u64 = 20;

/// The longest delay of a piece under chaos.
const DELAY_MAX: Duration = Duration::from_millis(300);

/// A proxy in front of a port of this machine. It ends when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    wire: Arc<ProxyShared>,
}

/// What the proxy and the threads of its connections share.
#[derive(Debug)]
struct ProxyShared {
    state: Mutex<ProxyState>,
}

#[derive(Debug, Default)]
struct ProxyState {
    target: u16,
    ended: bool,
    silent: bool,
    delay: Duration,
    chaos: Option<u64>,
    harmed: u64,
    /// Connections ever made: each has random choices of its own.
    made: u64,
    connections: Vec<Arc<ProxiedConnection>>,
}

impl Proxy {
    /// Starts a proxy in front of `target` on 127.0.0.1.
    ///
    /// # Panics
    ///
    /// If there is no port for it.
    #[must_use]
    pub fn start(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("the listener's address").port();
        let state = ProxyState { target, ..ProxyState::default() };
        let wire = Arc::new(ProxyShared { state: Mutex::new(state) });
        let shared = Arc::clone(&wire);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if shared.state().ended {
                    return;
                }
                // Without a listener at the target the client's connection is dropped.
                let _ = shared.connect(client);
            }
        });
        Self { port, wire }
    }

    /// The port on 127.0.0.1 where clients connect.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections there are.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.wire.state().connections.len()
    }

    /// How many pieces chaos has cut or delayed so far.
    #[must_use]
    pub fn harmed(&self) -> u64 {
        self.wire.state().harmed
    }

    /// Directs new connections to another port of this machine. Existing ones stay.
    pub fn lead_to(&self, target: u16) {
        self.wire.state().target = target;
    }

    /// Ends every connection at once, in both directions. New ones can be made.
    pub fn cut(&self) {
        self.wire.shut(Shutdown::Both);
    }

    /// Half-closes every connection towards both ends, and still reads what they send.
    pub fn half_close(&self) {
        self.wire.shut(Shutdown::Write);
    }

    /// Stops or resumes forwarding, without closing a connection.
    pub fn silence(&self, silent: bool) {
        self.wire.state().silent = silent;
    }

    /// Holds every piece back for a while.
    pub fn delay(&self, delay: Duration) {
        self.wire.state().delay = delay;
    }

    /// Cuts or delays pieces at random, from now on.
    pub fn chaos(&self, seed: u64) {
        self.wire.state().chaos = Some(seed);
    }

    /// Ends the chaos.
    pub fn calm(&self) {
        self.wire.state().chaos = None;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.wire.state().ended = true;
        self.cut();
        // One more connection wakes the accepting thread, which then ends.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

impl ProxyShared {
    fn state(&self) -> MutexGuard<'_, ProxyState> {
        self.state.lock().expect("no thread panics while holding it")
    }

    fn shut(&self, how: Shutdown) {
        self.state().connections.iter().for_each(|connection| connection.shut(how));
    }

    /// Connects a client through, with a thread for each direction.
    fn connect(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let target = self.state().target;
        let server = TcpStream::connect(("127.0.0.1", target))?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let mut state = self.state();
        state.made += 1;
        let connection = Arc::new(ProxiedConnection { number: state.made, client, server });
        state.connections.push(Arc::clone(&connection));
        drop(state);
        let wire = Arc::clone(self);
        thread::spawn(move || {
            thread::scope(|both| {
                both.spawn(|| wire.pump(&connection, &connection.client, &connection.server, 0));
                both.spawn(|| wire.pump(&connection, &connection.server, &connection.client, 1));
            });
            wire.state().connections.retain(|other| other.number != connection.number);
        });
        Ok(())
    }

    /// Carries everything one way until that way ends.
    fn pump(&self, whole: &ProxiedConnection, mut from: &TcpStream, mut to: &TcpStream, way: u64) {
        let mut buffer = vec![0; 16 * 1024];
        let mut rng = Rng(whole.number * 2 + way);
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let piece = buffer.get(..length).expect("no more than there is room for");
            self.wait();
            let (rest, cut) = match self.harm(&mut rng) {
                None => (piece, false),
                Some(WireFault::Cut { after_percent }) => {
                    (piece.get(..length * after_percent / 100).unwrap_or(piece), true)
                }
                Some(WireFault::HalfClose) => {
                    let _ = to.shutdown(Shutdown::Write);
                    continue;
                }
                Some(WireFault::Delay(delay)) => {
                    thread::sleep(delay);
                    (piece, false)
                }
            };
            // If the receiver takes no more, the rest is read and dropped until the sender stops.
            let _ = to.write_all(rest);
            if cut {
                whole.shut(Shutdown::Both);
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }

    /// Holds a piece back as the test says.
    fn wait(&self) {
        let delay = self.state().delay;
        thread::sleep(delay);
        while self.is_silent() {
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn is_silent(&self) -> bool {
        let state = self.state();
        state.silent && !state.ended
    }

    /// What happens to a piece, if anything does.
    fn harm(&self, rng: &mut Rng) -> Option<WireFault> {
        let mut state = self.state();
        let seed = state.chaos?;
        if !rng.roll(seed).is_multiple_of(HARM_ONE_IN) {
            return None;
        }
        state.harmed += 1;
        Some(match rng.roll(seed) % 6 {
            0 => WireFault::Cut { after_percent: 0 },
            1 => {
                WireFault::Cut { after_percent: usize::try_from(rng.roll(seed) % 100).unwrap_or(0) }
            }
            2 => WireFault::Cut { after_percent: 100 },
            3 => WireFault::HalfClose,
            _ => WireFault::Delay(DELAY_MAX.mul_f64(rng.fraction(seed))),
        })
    }
}

/// A client's connection and the one made for it.
#[derive(Debug)]
struct ProxiedConnection {
    number: u64,
    client: TcpStream,
    server: TcpStream,
}

impl ProxiedConnection {
    fn shut(&self, how: Shutdown) {
        let _ = (self.client.shutdown(how), self.server.shutdown(how));
    }
}

/// What can happen to a piece of what goes through.
enum WireFault {
    /// The connection ends after this share of the piece.
    Cut { after_percent: usize },
    /// The receiver sees the end of the stream.
    HalfClose,
    /// The piece comes late.
    Delay(Duration),
}

/// Random numbers of one direction of one connection (splitmix64).
struct Rng(u64);

impl Rng {
    fn roll(&mut self, seed: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut number = self.0 ^ seed;
        number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        number ^ (number >> 31)
    }

    /// Between 0 and 1.
    fn fraction(&mut self, seed: u64) -> f64 {
        f64::from(u16::try_from(self.roll(seed) % 1000).unwrap_or(0)) / 1000.0
    }
}
