//! Shards: several sockets bound to one address (SO_REUSEPORT), each with a driver of its own.
//!
//! The system delivers all datagrams from one address to the same socket, as long as the set of
//! sockets does not change. So all sockets are bound before the first driver starts, and none is
//! closed before the last driver has ended. The drivers share only the accept queue and a
//! [`ShardState`].

use std::io;
use std::net::SocketAddr;

use crate::config::SocketConfig;
use crate::driver::shard_state::ShardState;
use crate::sys::UdpSocket;

/// The sockets of a listener, and what their drivers share.
pub(super) struct ShardGroup {
    pub(super) sockets: Vec<UdpSocket>,
    /// `None` for a single socket.
    pub(super) state: Option<ShardState>,
}

impl ShardGroup {
    /// Binds the sockets of a listener: as many as [`SocketConfig::shards`].
    pub(super) fn bind(addr: SocketAddr, config: &SocketConfig) -> io::Result<Self> {
        let sockets = UdpSocket::bind_group(addr, config)?;
        let state = (sockets.len() > 1).then(ShardState::new);
        Ok(Self { sockets, state })
    }
}
