//! The wire between the client and whatever answers it. It can lose an answer.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use tokio::{
    io::{copy, copy_bidirectional},
    net::{TcpListener, TcpStream},
    select,
    task::JoinSet,
};

/// A wire, until it is dropped.
#[derive(Debug)]
pub(super) struct LossyWire {
    pub(super) address: SocketAddr,
    lossy: Arc<AtomicBool>,
    _carrier: JoinSet<()>,
}

impl LossyWire {
    /// Leads to this address.
    pub(super) async fn to(far: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let lossy = Arc::new(AtomicBool::new(false));
        let mut user_transaction = JoinSet::new();
        user_transaction.spawn(accept(listener, far, Arc::clone(&lossy)));
        Ok(Self { address, lossy, _carrier: user_transaction })
    }

    /// Loses the answer on the next connection: the request arrives, the answer sets out, and then
    /// the connection is cut.
    pub(super) fn lose_next_answer(&self) {
        self.lossy.store(true, Relaxed);
    }
}

async fn accept(listener: TcpListener, far: SocketAddr, lossy: Arc<AtomicBool>) {
    let mut connections = JoinSet::new();
    loop {
        select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                connections.spawn(carry(client, far, lossy.swap(false, Relaxed)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Copies both directions. Errors are ignored: a connection that ends early is expected.
async fn carry(mut client: TcpStream, far: SocketAddr, lossy: bool) -> io::Result<()> {
    let mut server = TcpStream::connect(far).await?;
    if !lossy {
        copy_bidirectional(&mut client, &mut server).await?;
        return Ok(());
    }
    let (mut answer, mut request) = server.split();
    let (mut from_client, _) = client.split();
    let mut first = [0];
    select! {
        sent = copy(&mut from_client, &mut request) => sent.map(drop),
        // Its first byte is here, so it was given. On return both ends are closed.
        came = answer.peek(&mut first) => came.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Sends five bytes and returns what comes back until the connection ends.
    async fn ask(wire: &LossyWire) -> Vec<u8> {
        let mut stream = TcpStream::connect(wire.address).await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        let mut answer = Vec::new();
        // A cut may be seen as an end or as a reset.
        let _ = stream.read_to_end(&mut answer).await;
        answer
    }

    #[tokio::test]
    async fn one_answer_is_lost_after_its_request_arrived_and_the_next_one_comes() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let wire = LossyWire::to(listener.local_addr().unwrap()).await.unwrap();
        let server = tokio::spawn(async move {
            let mut requests = 0;
            while requests < 3 {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 5];
                stream.read_exact(&mut request).await.unwrap();
                stream.write_all(b"answer").await.unwrap();
                requests += 1;
            }
            requests
        });

        assert_eq!(ask(&wire).await, b"answer");
        wire.lose_next_answer();
        assert_eq!(ask(&wire).await, b"");
        assert_eq!(ask(&wire).await, b"answer");
        assert_eq!(server.await.unwrap(), 3, "every request arrived");
    }
}
