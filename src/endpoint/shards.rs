//! Shards: several sockets bound to one address (SO_REUSEPORT), each with a driver of its own.
//!
//! The system delivers all datagrams from one address to the same socket, as long as the set of
//! sockets does not change. So all sockets are bound before the first driver starts, and none is
//! closed before the last driver has ended. The drivers share only the accept queue and the replay
//! filter of initial datagrams.

use std::io;
use std::net::SocketAddr;

use crate::config::SocketConfig;
use crate::driver::replay_filter::ReplayFilter;
use crate::sys::UdpSocket;
use crate::util::sync::{Arc, Mutex};

/// The sockets of a listener, and what their drivers share.
pub(super) struct ShardGroup {
    pub(super) sockets: Vec<UdpSocket>,
    /// Replay filter of initial datagrams; `None` for a single socket.
    pub(super) initial_nonces: Option<Arc<Mutex<ReplayFilter>>>,
}

impl ShardGroup {
    /// Binds the sockets of a listener: as many as [`SocketConfig::shards`].
    pub(super) fn bind(addr: SocketAddr, config: &SocketConfig) -> io::Result<Self> {
        let sockets = UdpSocket::bind_group(addr, config)?;
        let initial_nonces =
            (sockets.len() > 1).then(|| Arc::new(Mutex::new(ReplayFilter::of_initials())));
        Ok(Self { sockets, initial_nonces })
    }
}
