//! Shards: several sockets bound to one address (SO_REUSEPORT), each with a driver of its own.
//!
//! The system sends all datagrams of one peer to the same socket, as long as the group stays as it
//! is. So the group is complete before the first driver starts, and no socket of it is closed
//! before the last driver has ended. The drivers share nothing but the accept queue and the replay
//! filter of initial segments.

use std::io;
use std::net::SocketAddr;

use crate::config::SocketConfig;
use crate::driver::replay_filter::ReplayFilter;
use crate::sys::UdpSocket;
use crate::util::sync::{Arc, Mutex};

/// The sockets of a listener, and what their drivers share.
pub(super) struct ShardGroup {
    pub(super) sockets: Vec<UdpSocket>,
    /// Replay filter of initial segments; `None` for a socket that is alone.
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
