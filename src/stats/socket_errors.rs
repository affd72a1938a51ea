//! Counters of transient socket errors by class.

use std::ops::Add;

/// Transient socket errors by class. They do not end the endpoint.
///
/// ```
/// use kcpx::Endpoint;
///
/// fn report(endpoint: &Endpoint) {
///     let stats = endpoint.stats();
///     let (out, back) = (stats.send_errors_by_class, stats.recv_errors_by_class);
///     println!("{} refused, {} without a route", back.refused, out.unreachable);
///     println!("{} without a buffer of the system", out.no_buffers);
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketErrors {
    /// The datagram exceeds the MTU of the path or system (`EMSGSIZE`).
    pub too_large: u64,
    /// The system was out of buffers (`ENOBUFS`, `ENOMEM`).
    pub no_buffers: u64,
    /// Denied, for example by a firewall (`EPERM`, `EACCES`).
    pub denied: u64,
    /// The peer's port is closed (`ECONNREFUSED`, `ECONNRESET`).
    pub refused: u64,
    /// No route to the peer, or the local address is gone (`ENETUNREACH`, `EHOSTUNREACH`, `ENETDOWN`,
    /// `EADDRNOTAVAIL`).
    pub unreachable: u64,
    /// All other errors.
    pub other: u64,
}

/// Sum over several sockets.
impl Add for SocketErrors {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            too_large: self.too_large + more.too_large,
            no_buffers: self.no_buffers + more.no_buffers,
            denied: self.denied + more.denied,
            refused: self.refused + more.refused,
            unreachable: self.unreachable + more.unreachable,
            other: self.other + more.other,
        }
    }
}
