//! A service on tonic, written by hand: what `protoc` would write from a `.proto` file, and a
//! client for it.

use std::{
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::uri::PathAndQuery;
use tokio::{net::TcpListener, sync::mpsc};
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    client,
    codegen::{BoxFuture, BoxStream, Service, tokio_stream::wrappers::ReceiverStream},
    server::{Grpc, NamedService},
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};
use tonic_prost::ProstCodec;

/// What a client asks for.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Charge {
    #[prost(string, tag = "1")]
    pub(crate) account: String,
    #[prost(uint32, tag = "2")]
    pub(crate) cents: u32,
}

/// What it gets: the number of the execution that made it.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Receipt {
    #[prost(uint32, tag = "1")]
    pub(crate) number: u32,
}

/// The server. `Charge` answers with a receipt, or fails for the account `unknown`; `Watch` answers
/// with as many as there are cents; `Talk` answers each charge as it comes.
#[derive(Clone, Default)]
pub(crate) struct Bank {
    runs: Arc<AtomicU32>,
    keys: Arc<Mutex<Vec<String>>>,
    timeouts: Arc<Mutex<Vec<String>>>,
}

impl Bank {
    pub(crate) async fn start() -> (Self, SocketAddr) {
        let bank = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::builder().add_service(bank.clone());
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        (bank, address)
    }

    pub(crate) fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    /// The keys of the charges so far, as they came.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.keys.lock().unwrap().clone()
    }

    /// The deadlines of the charges so far, as they came.
    pub(crate) fn timeouts(&self) -> Vec<String> {
        self.timeouts.lock().unwrap().clone()
    }

    fn run(&self) -> Receipt {
        Receipt { number: self.runs.fetch_add(1, Ordering::SeqCst) + 1 }
    }

    async fn charge(self, request: Request<Charge>) -> Result<Response<Receipt>, Status> {
        let guarded = request.metadata().contains_key("idempotency-fence");
        assert_eq!(request.metadata().contains_key("idempotency-attempt"), guarded);
        if let Some(key) = request.metadata().get(super::KEY) {
            self.keys.lock().unwrap().push(key.to_str().unwrap().to_owned());
        }
        if let Some(timeout) = request.metadata().get("grpc-timeout") {
            self.timeouts.lock().unwrap().push(timeout.to_str().unwrap().to_owned());
        }
        let receipt = self.run();
        match &*request.get_ref().account {
            "unknown" => Err(Status::with_details(
                tonic::Code::FailedPrecondition,
                "there is no account «unknown»",
                vec![8, 9, 0, 255].into(),
            )),
            "slow" => {
                tokio::time::sleep(Duration::from_secs(3)).await;
                Ok(Response::new(receipt))
            }
            "locked" => Err(Status::permission_denied("later")),
            "busy" => Err(Status::unavailable("later")),
            "broken" => Err(Status::unknown("who knows")),
            _ => Ok(Response::new(receipt)),
        }
    }

    async fn watch(self, request: Request<Charge>) -> Result<Response<BoxStream<Receipt>>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            for _ in 0..request.get_ref().cents {
                let _ = sender.send(Ok(self.run())).await;
            }
            let _ = sender.send(Err(Status::aborted("that is all"))).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn talk(
        self,
        request: Request<Streaming<Charge>>,
    ) -> Result<Response<BoxStream<Receipt>>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        let mut charges = request.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(_)) = charges.message().await {
                let _ = sender.send(Ok(self.run())).await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

impl NamedService for Bank {
    const NAME: &'static str = "bank.Bank";
}

impl Service<http::Request<Body>> for Bank {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let bank = self.clone();
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::<Receipt, Charge>::default());
            Ok(match request.uri().path() {
                "/bank.Bank/Charge" => {
                    let handler = move |charge| bank.clone().charge(charge);
                    grpc.unary(Handler(handler), request).await
                }
                "/bank.Bank/Watch" => {
                    let handler = move |charge| bank.clone().watch(charge);
                    grpc.server_streaming(Handler(handler), request).await
                }
                "/bank.Bank/Talk" => {
                    let handler = move |charges| bank.clone().talk(charges);
                    grpc.streaming(Handler(handler), request).await
                }
                _ => Status::unimplemented("no such call").into_http(),
            })
        })
    }
}

/// A function as a service.
struct Handler<F>(F);

impl<F, R, A, T> Service<R> for Handler<F>
where
    F: FnMut(R) -> A,
    A: Future<Output = Result<T, Status>> + Send + 'static,
{
    type Response = T;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        Box::pin((self.0)(request))
    }
}

/// A client of the bank.
pub(crate) struct Client(client::Grpc<Channel>);

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        Self(client::Grpc::new(endpoint.connect().await.unwrap()))
    }

    async fn ready(&mut self) -> ProstCodec<Charge, Receipt> {
        self.0.ready().await.unwrap();
        ProstCodec::default()
    }

    pub(crate) async fn charge(
        &mut self,
        request: Request<Charge>,
    ) -> Result<Response<Receipt>, Status> {
        let codec = self.ready().await;
        let path = PathAndQuery::from_static("/bank.Bank/Charge");
        self.0.unary(request, path, codec).await
    }

    pub(crate) async fn watch(
        &mut self,
        request: Request<Charge>,
    ) -> Result<Response<Streaming<Receipt>>, Status> {
        let codec = self.ready().await;
        let path = PathAndQuery::from_static("/bank.Bank/Watch");
        self.0.server_streaming(request, path, codec).await
    }

    pub(crate) async fn talk(
        &mut self,
        charges: mpsc::Receiver<Charge>,
    ) -> Result<Response<Streaming<Receipt>>, Status> {
        let codec = self.ready().await;
        let path = PathAndQuery::from_static("/bank.Bank/Talk");
        self.0.streaming(Request::new(ReceiverStream::new(charges)), path, codec).await
    }
}
