//! Sockets: the driver's interface, the UDP socket, and the application's transport. Changes of the host's
//! network (feature `netlink`).
//!
//! Datagrams move in GSO batches (send) and GRO batches (receive): datagrams of equal size between the
//! same two addresses, back to back in memory; the last may be shorter. If the system segments and
//! coalesces (`UDP_SEGMENT`, `UDP_GRO`), a batch is one system call; otherwise a batch is one datagram.

mod errors;
#[cfg(all(feature = "netlink", target_os = "linux"))]
mod netlink;
mod network;
mod options;
mod prefetch;
mod recv_batch;
mod refusal;
mod socket;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod transport;
mod transport_socket;
mod udp;

pub(crate) use errors::{RecvFault, SendFault, classify_recv, classify_send, count};
#[cfg(all(feature = "netlink", target_os = "linux"))]
pub(crate) use netlink::watch_network;
#[cfg(not(all(feature = "netlink", target_os = "linux")))]
pub(crate) use network::watch_network;
pub(crate) use network::{NetworkWatcher, WATCHES_NETWORK};
pub(crate) use options::{check_route, source_addr};
pub(crate) use prefetch::prefetch;
pub(crate) use recv_batch::{MAX_DATAGRAM, RxBatch};
pub(crate) use refusal::RefusalWatch;
pub(crate) use socket::Socket;
pub(crate) use transport::Transmit;
pub(crate) use transport_socket::TransportSocket;
pub(crate) use udp::UdpSocket;
