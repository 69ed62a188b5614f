//! An upstream that counts its executions, remembers what it got, and answers as a test says.

use std::{
    error::Error,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::{
    body::Incoming,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use semel_testkit::gate::Gate;
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};
use tokio_rustls::TlsAcceptor;

use super::{Content, content, text};

/// A request as it arrived: one execution.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    /// 1 for the first that arrived at all.
    pub(crate) number: usize,
    /// 1 for the first with its key.
    pub(crate) run: usize,
    pub(crate) method: Method,
    /// With its query.
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl ReceivedRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The key without its quotes; empty if there is none.
    pub(crate) fn key(&self) -> &str {
        self.header("idempotency-key").unwrap_or_default().trim_matches('"')
    }

    pub(crate) fn fence(&self) -> u64 {
        self.header("idempotency-fence").expect("a fence").parse().unwrap()
    }

    pub(crate) fn attempt(&self) -> u64 {
        self.header("idempotency-attempt").expect("an attempt").parse().unwrap()
    }
}

/// What the upstream does with a request that it has read.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    status: u16,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
    chunked: bool,
    delay: Duration,
    gate: Option<Gate>,
    end: End,
}

#[derive(Clone, Copy, Debug)]
enum End {
    /// The whole answer goes out.
    Whole,
    /// The connection is closed instead of an answer.
    Closed,
    /// The connection is reset instead of an answer.
    Reset,
    /// The answer breaks off after so many bytes of its body.
    Cut(usize),
    /// Nothing ever comes.
    Silent,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Bytes>) -> Self {
        let (headers, delay) = (Vec::new(), Duration::ZERO);
        let body = body.into();
        Self { status, headers, body, chunked: false, delay, gate: None, end: End::Whole }
    }

    /// `201 Created` with a body and a `Location` that no other run has.
    pub(crate) fn created(request: &ReceivedRequest) -> Self {
        let body = format!("{{\"key\": \"{}\", \"charge\": {}}}\n", request.key(), request.number);
        Self::new(201, body)
            .header("content-type", "application/json")
            .header("location", &format!("/charges/{}", request.number))
    }

    pub(crate) fn closed() -> Self {
        Self { end: End::Closed, ..Self::new(200, "") }
    }

    pub(crate) fn reset() -> Self {
        Self { end: End::Reset, ..Self::new(200, "") }
    }

    pub(crate) fn silent() -> Self {
        Self { end: End::Silent, ..Self::new(200, "") }
    }

    /// Breaks off after so many bytes of the body.
    pub(crate) fn cut_after(self, bytes: usize) -> Self {
        Self { end: End::Cut(bytes), ..self }
    }

    /// Does not say how long the body is.
    pub(crate) fn chunked(self) -> Self {
        Self { chunked: true, ..self }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.parse().unwrap(), value.parse().unwrap()));
        self
    }

    pub(crate) fn after(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Waits until the test opens the gate.
    pub(crate) fn blocked_on(self, gate: &Gate) -> Self {
        Self { gate: Some(gate.clone()), ..self }
    }

    fn response(self) -> Response<Payload> {
        let (sent, cut) = match self.end {
            End::Cut(bytes) => (self.body.slice(..bytes), true),
            End::Whole | End::Closed | End::Reset | End::Silent => (self.body.clone(), false),
        };
        let size = (!self.chunked).then_some(self.body.len() as u64);
        let mut response = Response::new(Payload { sent: Some(sent), size, cut });
        *response.status_mut() = self.status.try_into().unwrap();
        response.headers_mut().extend(self.headers);
        response
    }
}

/// A body of a declared size or of none, whole or cut.
struct Payload {
    sent: Option<Bytes>,
    size: Option<u64>,
    cut: bool,
}

impl http_body::Body for Payload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Some(bytes) = self.sent.take_if(|bytes| !bytes.is_empty()) {
            // Hyper drops what it has not flushed when a body fails, so what is sent gets a turn.
            context.waker().wake_by_ref();
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        if self.sent.take().is_some() || !self.cut {
            return Poll::Ready(self.cut.then(|| Err(io::Error::other("cut"))));
        }
        self.sent = Some(Bytes::new());
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        !self.cut && self.sent.as_ref().is_none_or(Bytes::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        self.size.map(SizeHint::with_exact).unwrap_or_default()
    }
}

/// An upstream that runs until it is dropped or stopped.
pub(crate) struct Upstream {
    address: SocketAddr,
    counts: Arc<UpstreamCounts>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct UpstreamCounts {
    connections: AtomicUsize,
    requests: AtomicUsize,
    /// The requests that a script has answered.
    received: Mutex<Vec<ReceivedRequest>>,
}

impl Upstream {
    /// One that answers each request, once it is whole, as the script says.
    pub(crate) async fn start(
        script: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), script).await
    }

    /// One that answers every request with `201 Created`.
    pub(crate) async fn plain() -> Self {
        Self::start(Reply::created).await
    }

    /// One at an address that a test has chosen.
    pub(crate) async fn at(
        address: SocketAddr,
        script: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let script = Arc::new(script);
        Self::run(address, builder(), None, move |request, socket, counts| {
            let script = Arc::clone(&script);
            async move { answer(request, &*script, &socket, &counts).await }
        })
        .await
    }

    /// One that answers by a function, which gets each request as soon as its head has arrived.
    pub(crate) async fn serving<F, A>(answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Response<Content>> + Send + 'static,
    {
        Self::serving_with(builder(), None, answer).await
    }

    /// The same by TLS.
    pub(crate) async fn serving_tls<F, A>(acceptor: TlsAcceptor, answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Response<Content>> + Send + 'static,
    {
        Self::serving_with(builder(), Some(acceptor), answer).await
    }

    /// One that answers with the number of the request.
    pub(crate) async fn counting() -> Self {
        let count = Arc::<AtomicUsize>::default();
        Self::serving(move |_| {
            let number = count.fetch_add(1, Ordering::SeqCst) + 1;
            async move { Response::new(text(format!("run {number}"))) }
        })
        .await
    }

    /// One with its own settings of HTTP.
    pub(crate) async fn serving_with<F, A>(
        builder: Builder<TokioExecutor>,
        acceptor: Option<TlsAcceptor>,
        answer: F,
    ) -> Self
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Response<Content>> + Send + 'static,
    {
        let address = "127.0.0.1:0".parse().unwrap();
        Self::run(address, builder, acceptor, move |request, _, counts| {
            counts.requests.fetch_add(1, Ordering::SeqCst);
            let answered = answer(request);
            async move { Ok(answered.await) }
        })
        .await
    }

    async fn run<F, A>(
        address: SocketAddr,
        builder: Builder<TokioExecutor>,
        acceptor: Option<TlsAcceptor>,
        answer: F,
    ) -> Self
    where
        F: Fn(Request<Incoming>, Socket, Arc<UpstreamCounts>) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = io::Result<Response<Content>>> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let counts = Arc::<UpstreamCounts>::default();
        let shared = Arc::clone(&counts);
        let task = tokio::spawn(async move {
            // The connections end with the task that accepts them.
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let (stream, socket) = with_handle(stream);
                let (answer, counts) = (answer.clone(), Arc::clone(&shared));
                let service = service_fn(move |request| {
                    answer(request, Arc::clone(&socket), Arc::clone(&counts))
                });
                let (builder, acceptor) = (builder.clone(), acceptor.clone());
                connections.spawn(async move {
                    // However the client ends the connection is no failure here.
                    let _ = match acceptor {
                        None => serve(builder, stream, service).await,
                        Some(acceptor) => match acceptor.accept(stream).await {
                            Ok(stream) => serve(builder, stream, service).await,
                            Err(_) => Ok(()),
                        },
                    };
                });
            }
        });
        Self { address, counts, task }
    }

    /// Stops it and returns its address, where no listener is left.
    pub(crate) async fn stop(self) -> SocketAddr {
        let address = self.address;
        self.task.abort();
        drop(self);
        super::wait_until(|| std::net::TcpStream::connect(address).is_err()).await;
        address
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Every execution of a script so far, in the order of their arrival.
    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.counts.received.lock().unwrap().clone()
    }

    /// How many executions there were, of any key.
    pub(crate) fn request_count(&self) -> usize {
        self.counts.requests.load(Ordering::SeqCst)
    }

    /// The executions with this key.
    pub(crate) fn requests_with_key(&self, key: &str) -> Vec<ReceivedRequest> {
        self.requests().into_iter().filter(|request| request.key() == key).collect()
    }

    /// How many connections were made to it.
    pub(crate) fn connections(&self) -> usize {
        self.counts.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// HTTP/1.1 and HTTP/2.
fn builder() -> Builder<TokioExecutor> {
    Builder::new(TokioExecutor::new())
}

/// A second handle on a connection, which says how it is closed while hyper owns the first.
type Socket = Arc<std::net::TcpStream>;

fn with_handle(stream: TcpStream) -> (TcpStream, Socket) {
    stream.set_nodelay(true).unwrap();
    let stream = stream.into_std().unwrap();
    let socket = Arc::new(stream.try_clone().unwrap());
    (TcpStream::from_std(stream).unwrap(), socket)
}

async fn serve<T, S>(
    builder: Builder<TokioExecutor>,
    io: T,
    service: S,
) -> Result<(), Box<dyn Error + Send + Sync>>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<Content>, Error = io::Error> + Send + 'static,
    S::Future: Send + 'static,
{
    builder.serve_connection_with_upgrades(TokioIo::new(io), service).await
}

/// Answers a whole request as a script says.
async fn answer(
    request: Request<Incoming>,
    script: &(impl Fn(&ReceivedRequest) -> Reply + Send + Sync),
    socket: &std::net::TcpStream,
    counts: &UpstreamCounts,
) -> io::Result<Response<Content>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let path = parts.uri.path_and_query().map_or("", |path| path.as_str()).to_owned();
    let (method, headers) = (parts.method, parts.headers);
    let request = ReceivedRequest { number: 0, run: 0, method, path, headers, body };
    let reply = script(&counts.remember(request));
    tokio::time::sleep(reply.delay).await;
    if let Some(gate) = &reply.gate {
        gate.wait_open().await;
    }
    match reply.end {
        End::Whole | End::Cut(_) => Ok(reply.response().map(content)),
        End::Closed => Err(io::Error::other("closed")),
        End::Reset => {
            SockRef::from(socket).set_linger(Some(Duration::ZERO)).unwrap();
            Err(io::Error::other("reset"))
        }
        End::Silent => std::future::pending().await,
    }
}

impl UpstreamCounts {
    fn remember(&self, mut request: ReceivedRequest) -> ReceivedRequest {
        let mut all = self.received.lock().unwrap();
        request.number = all.len() + 1;
        request.run = all.iter().filter(|other| other.key() == request.key()).count() + 1;
        all.push(request.clone());
        self.requests.store(all.len(), Ordering::SeqCst);
        request
    }
}
