//! The wire that fails, in front of a server that says everything back.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use semel_testkit::wire::Proxy;

/// A proxy before an echo.
fn wire() -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || io::copy(&mut &stream, &mut &stream));
        }
    });
    Proxy::start(port)
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// Says `ping` and hears it, unless the wire is broken.
fn ping(stream: &mut TcpStream) -> io::Result<()> {
    let mut heard = [0; 4];
    stream.write_all(b"ping")?;
    stream.read_exact(&mut heard)?;
    assert_eq!(&heard, b"ping", "what comes through is whole");
    Ok(())
}

#[test]
fn a_cut_ends_connections_and_new_ones_can_be_made() {
    let proxy = wire();
    let mut stream = connect(&proxy);
    ping(&mut stream).unwrap();
    assert_eq!(proxy.connections(), 1);
    proxy.cut();
    assert!(ping(&mut stream).is_err());
    ping(&mut connect(&proxy)).unwrap();
}

#[test]
fn a_half_closed_connection_still_takes_what_is_sent() {
    let proxy = wire();
    let mut stream = connect(&proxy);
    ping(&mut stream).unwrap();
    proxy.half_close();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    stream.write_all(b"into the void").unwrap();
}

#[test]
fn a_silent_wire_loses_nothing() {
    let proxy = wire();
    let mut stream = connect(&proxy);
    proxy.silence(true);
    stream.write_all(b"ping").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut heard = [0; 4];
    assert!(stream.read(&mut heard).is_err());
    proxy.silence(false);
    proxy.delay(Duration::from_millis(1));
    stream.set_read_timeout(None).unwrap();
    stream.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"ping");
}

#[test]
fn chaos_breaks_connections_again_and_again_and_can_be_calmed() {
    let proxy = wire();
    proxy.chaos(7);
    let mut broken = 0;
    while broken < 5 {
        let mut stream = connect(&proxy);
        while ping(&mut stream).is_ok() {}
        broken += 1;
    }
    assert!(proxy.harmed() >= 5);
    proxy.calm();
    let harmed = proxy.harmed();
    let mut stream = connect(&proxy);
    (0..500).for_each(|_| ping(&mut stream).unwrap());
    assert_eq!(proxy.harmed(), harmed);
}
