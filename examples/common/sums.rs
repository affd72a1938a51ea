//! A gRPC service, written by hand instead of generated, so that no protocol compiler is needed.
//!
//! ```proto
//! syntax = "proto3";
//! package kcpx.demo;
//!
//! message Number { int64 value = 1; }
//!
//! service Sums {
//!     rpc Square (Number) returns (Number);
//!     rpc Count (Number) returns (stream Number);          // 1, 2, ... up to the number
//!     rpc Total (stream Number) returns (stream Number);   // the sum so far, for each number
//! }
//! ```

#![allow(dead_code, reason = "each program uses a part of it")]

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use http::uri::PathAndQuery;
use kcpx::KcpConnectInfo;
use tokio_stream::{Stream, StreamExt};
use tonic::body::Body;
use tonic::server::{ServerStreamingService, StreamingService, UnaryService};
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower_service::Service;

const SQUARE: &str = "/kcpx.demo.Sums/Square";
const COUNT: &str = "/kcpx.demo.Sums/Count";
const TOTAL: &str = "/kcpx.demo.Sums/Total";

/// In the answer to `Square`: the address the service saw the client at.
pub(crate) const PEER: &str = "kcp-peer";

type Codec = ProstCodec<Number, Number>;
type Numbers = Pin<Box<dyn Stream<Item = Result<Number, Status>> + Send>>;

/// The only message.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct Number {
    #[prost(int64, tag = "1")]
    pub(crate) value: i64,
}

/// The service, for `tonic::transport::Server`.
#[derive(Clone, Copy)]
pub(crate) struct Sums;

impl Service<http::Request<Body>> for Sums {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(Codec::default());
            Ok(match request.uri().path() {
                SQUARE => grpc.unary(Square, request).await,
                COUNT => grpc.server_streaming(Count, request).await,
                TOTAL => grpc.streaming(Total, request).await,
                unknown => Status::unimplemented(format!("no method {unknown}")).into_http(),
            })
        })
    }
}

struct Square;

impl UnaryService<Number> for Square {
    type Response = Number;
    type Future = Ready<Result<Response<Number>, Status>>;

    fn call(&mut self, request: Request<Number>) -> Self::Future {
        let Some(info) = request.extensions().get::<KcpConnectInfo>() else {
            return ready(Err(Status::internal("the connection is none of KCP")));
        };
        let Ok(peer) = info.peer_addr.to_string().parse() else {
            return ready(Err(Status::internal("the address of the peer is no metadata")));
        };
        let Some(value) = request.get_ref().value.checked_mul(request.get_ref().value) else {
            return ready(Err(Status::out_of_range("the square does not fit 64 bits")));
        };
        let mut response = Response::new(Number { value });
        response.metadata_mut().insert(PEER, peer);
        ready(Ok(response))
    }
}

struct Count;

impl ServerStreamingService<Number> for Count {
    type Response = Number;
    type ResponseStream = Numbers;
    type Future = Ready<Result<Response<Numbers>, Status>>;

    fn call(&mut self, request: Request<Number>) -> Self::Future {
        let numbers = (1..=request.into_inner().value).map(|value| Ok(Number { value }));
        ready(Ok(Response::new(Box::pin(tokio_stream::iter(numbers)))))
    }
}

struct Total;

impl StreamingService<Number> for Total {
    type Response = Number;
    type ResponseStream = Numbers;
    type Future = Ready<Result<Response<Numbers>, Status>>;

    fn call(&mut self, request: Request<Streaming<Number>>) -> Self::Future {
        let mut total = 0_i64;
        let totals = request.into_inner().map(move |number| {
            total = total.wrapping_add(number?.value);
            Ok(Number { value: total })
        });
        ready(Ok(Response::new(Box::pin(totals))))
    }
}

/// The other side of it.
pub(crate) struct SumsClient {
    grpc: tonic::client::Grpc<Channel>,
}

impl SumsClient {
    pub(crate) fn new(channel: Channel) -> Self {
        Self { grpc: tonic::client::Grpc::new(channel) }
    }

    pub(crate) async fn square(&mut self, value: i64) -> Result<Response<Number>, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static(SQUARE);
        self.grpc.unary(Request::new(Number { value }), path, Codec::default()).await
    }

    pub(crate) async fn count(&mut self, value: i64) -> Result<Streaming<Number>, Status> {
        self.ready().await?;
        let (request, path) = (Request::new(Number { value }), PathAndQuery::from_static(COUNT));
        let response = self.grpc.server_streaming(request, path, Codec::default()).await?;
        Ok(response.into_inner())
    }

    pub(crate) async fn total(
        &mut self,
        numbers: impl Stream<Item = Number> + Send + 'static,
    ) -> Result<Streaming<Number>, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static(TOTAL);
        let response = self.grpc.streaming(Request::new(numbers), path, Codec::default()).await?;
        Ok(response.into_inner())
    }

    async fn ready(&mut self) -> Result<(), Status> {
        self.grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))
    }
}
