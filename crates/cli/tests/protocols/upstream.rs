//! An API behind the gateway, made of a function. It counts requests and connections.

use std::{
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::{Request, Response};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use crate::client::{Content, text};

/// A server that ends with the test.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    requests: AtomicUsize,
    connections: AtomicUsize,
}

impl Upstream {
    /// Answers each request by what the function says. Speaks HTTP/1.1 and HTTP/2.
    pub(crate) async fn start<F, A>(answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Response<Content>> + Send + 'static,
    {
        Self::start_with(Builder::new(TokioExecutor::new()), None, answer).await
    }

    /// The same by TLS.
    pub(crate) async fn start_tls<F, A>(acceptor: TlsAcceptor, answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Response<Content>> + Send + 'static,
    {
        Self::start_with(Builder::new(TokioExecutor::new()), Some(acceptor), answer).await
    }

    /// Answers how often it was asked so far.
    pub(crate) async fn counting() -> Self {
        let count = Arc::<AtomicUsize>::default();
        Self::start(move |_| {
            let number = count.fetch_add(1, Ordering::SeqCst) + 1;
            async move { Response::new(text(format!("run {number}"))) }
        })
        .await
    }

    pub(crate) async fn start_with<F, A>(
        builder: Builder<TokioExecutor>,
        acceptor: Option<TlsAcceptor>,
        answer: F,
    ) -> Self
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Response<Content>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = Self { address: listener.local_addr().unwrap(), counts: Arc::default() };
        let counts = Arc::clone(&upstream.counts);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                counts.connections.fetch_add(1, Ordering::SeqCst);
                let (builder, counts) = (builder.clone(), Arc::clone(&counts));
                let (acceptor, answer) = (acceptor.clone(), answer.clone());
                tokio::spawn(async move {
                    match acceptor {
                        None => serve(stream, builder, counts, answer).await,
                        Some(acceptor) => {
                            if let Ok(stream) = acceptor.accept(stream).await {
                                serve(stream, builder, counts, answer).await;
                            }
                        }
                    }
                });
            }
        });
        upstream
    }

    /// How many requests it got.
    pub(crate) fn requests(&self) -> usize {
        self.counts.requests.load(Ordering::SeqCst)
    }

    /// How many connections were made to it.
    pub(crate) fn connections(&self) -> usize {
        self.counts.connections.load(Ordering::SeqCst)
    }
}

async fn serve<T, F, A>(io: T, builder: Builder<TokioExecutor>, counts: Arc<Counts>, answer: F)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Response<Content>> + Send + 'static,
{
    let service = service_fn(move |request| {
        counts.requests.fetch_add(1, Ordering::SeqCst);
        let answered = answer(request);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    // How a connection ends is the client's affair.
    let _ = builder.serve_connection_with_upgrades(TokioIo::new(io), service).await;
}
