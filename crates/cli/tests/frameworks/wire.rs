//! A wire that loses the first answer to every key, each in one of three ways in turn.

use std::{
    collections::BTreeMap,
    io::{self, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use crate::http::{Connection, Message};

/// How an answer was lost.
#[derive(Debug)]
pub(crate) enum Loss {
    /// It was given, and none of it arrived.
    Whole(Message),
    /// It was given, and half of it arrived.
    Half(Message),
    /// The wire broke as soon as the request was through.
    BeforeAnyAnswer,
}

impl Loss {
    /// What was answered, where that is known.
    pub(crate) fn answer(&self) -> Option<&Message> {
        match self {
            Self::Whole(answer) | Self::Half(answer) => Some(answer),
            Self::BeforeAnyAnswer => None,
        }
    }
}

/// The losses by key; a key has an empty place from when its first request is seen.
type Losses = Arc<Mutex<BTreeMap<String, Option<Loss>>>>;

/// A running wire.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) address: SocketAddr,
    losses: Losses,
}

impl Wire {
    pub(crate) fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let losses = Losses::default();
        let shared = Arc::clone(&losses);
        thread::spawn(move || {
            for client in listener.incoming() {
                let losses = Arc::clone(&shared);
                // A wire that ends with an error is only one more broken wire.
                thread::spawn(move || carry(client?, server, &losses));
            }
        });
        Self { address, losses }
    }

    /// What was lost, by key.
    pub(crate) fn losses(&self) -> BTreeMap<String, Loss> {
        let losses = std::mem::take(&mut *self.losses.lock().unwrap());
        losses.into_iter().map(|(key, loss)| (key, loss.unwrap())).collect()
    }
}

/// Carries the exchanges of one connection until one is lost or the client has enough.
fn carry(client: TcpStream, server: SocketAddr, losses: &Losses) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut client = BufReader::new(client);
    let mut server = Connection::open(server);
    while let Some(request) = Message::read(&mut client)? {
        server.send(&request.bytes())?;
        let key = request.header("idempotency-key").unwrap().to_owned();
        let Some(number) = first_of(&key, losses) else {
            client.get_mut().write_all(&server.answer()?.bytes())?;
            continue;
        };
        let loss = match number % 3 {
            0 => Loss::Whole(server.answer()?),
            1 => {
                let answer = server.answer()?;
                let bytes = answer.bytes();
                client.get_mut().write_all(&bytes[..bytes.len() - answer.body.len() / 2])?;
                Loss::Half(answer)
            }
            _ => Loss::BeforeAnyAnswer,
        };
        losses.lock().unwrap().insert(key, Some(loss));
        return Ok(());
    }
    Ok(())
}

/// Which key this is, if it is a new one.
fn first_of(key: &str, losses: &Losses) -> Option<usize> {
    let mut losses = losses.lock().unwrap();
    let number = losses.len();
    let new = !losses.contains_key(key);
    new.then(|| {
        losses.insert(key.to_owned(), None);
        number
    })
}
