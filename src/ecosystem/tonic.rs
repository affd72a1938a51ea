//! Connection information of tonic servers.

use std::net::SocketAddr;

use tonic::transport::server::Connected;

use crate::stream::{KcpStream, source};

/// The addresses of a gRPC connection over KCP.
///
/// Services find it in the extensions of a request:
/// `request.extensions().get::<KcpConnectInfo>()`.
///
/// ```
/// use std::net::SocketAddr;
///
/// use kcpx::KcpConnectInfo;
/// use tonic::{Request, Response, Status};
///
/// /// A method of a service.
/// async fn hello(request: Request<String>) -> Result<Response<String>, Status> {
///     let info = request.extensions().get::<KcpConnectInfo>();
///     let peer: Option<SocketAddr> = info.map(|info| info.peer_addr);
///     Ok(Response::new(format!("hello, {peer:?}")))
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KcpConnectInfo {
    /// The address that datagrams to the peer leave from, see [`KcpStream::local_addr`].
    pub local_addr: SocketAddr,
    /// The address of the peer.
    pub peer_addr: SocketAddr,
}

/// A tonic server runs on [`KcpListener::incoming`](crate::KcpListener::incoming) with the feature
/// `stream`: `Server::builder().serve_with_incoming(service, listener.incoming())`.
impl Connected for KcpStream {
    type ConnectInfo = KcpConnectInfo;

    fn connect_info(&self) -> KcpConnectInfo {
        let handle = self.handle();
        KcpConnectInfo { local_addr: source(handle), peer_addr: handle.peer() }
    }
}
