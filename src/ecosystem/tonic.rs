//! Connection information of tonic servers.

use std::net::SocketAddr;

use tonic::transport::server::Connected;

use crate::stream::{KcpStream, source};

/// The addresses of a gRPC connection over KCP.
///
/// Services find it in the extensions of a request:
/// `request.extensions().get::<KcpConnectInfo>()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KcpConnectInfo {
    /// Local address of the socket. Its IP is unspecified if it was bound so.
    pub local_addr: SocketAddr,
    /// The address of the peer.
    pub peer_addr: SocketAddr,
}

/// With [`KcpListener::incoming`](crate::KcpListener::incoming) and the feature `stream` a tonic
/// server runs on KCP: `Server::builder().serve_with_incoming(service, listener.incoming())`.
impl Connected for KcpStream {
    type ConnectInfo = KcpConnectInfo;

    fn connect_info(&self) -> KcpConnectInfo {
        let handle = self.handle();
        KcpConnectInfo { local_addr: source(handle), peer_addr: handle.peer() }
    }
}
