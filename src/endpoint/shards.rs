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
        Ok(Self::of(UdpSocket::bind_group(addr, config)?))
    }

    /// Adopts the sockets of a listener, which are bound to one address. `wanted` is
    /// [`SocketConfig::shards`].
    pub(super) fn adopt(sockets: Vec<std::net::UdpSocket>, wanted: usize) -> io::Result<Self> {
        let mut addrs = Vec::new();
        for socket in &sockets {
            addrs.push(socket.local_addr()?);
        }
        let Some(addr) = addrs.first() else {
            return Err(invalid("no socket, allowed is 1 or more"));
        };
        if let Some(other) = addrs.iter().find(|other| *other != addr) {
            return Err(invalid(&format!(
                "the sockets are bound to {addr} and {other}, allowed is one address for all"
            )));
        }
        if addr.port() == 0 {
            return Err(invalid("a socket is not bound, allowed are bound ones"));
        }
        check_shards(wanted, sockets.len())?;
        Ok(Self::of(UdpSocket::adopt_group(sockets)?))
    }

    fn of(sockets: Vec<UdpSocket>) -> Self {
        let state = (sockets.len() > 1).then(ShardState::new);
        Self { sockets, state }
    }
}

/// Checks that a configuration for `sockets` adopted sockets does not ask for another number.
pub(super) fn check_shards(wanted: usize, sockets: usize) -> io::Result<()> {
    if wanted == 1 || wanted == sockets {
        return Ok(());
    }
    Err(invalid(&format!(
        "shards (sockets) is {wanted}, allowed is the number of sockets that are handed over, {sockets}, \
         or 1; `KcpListener::from_std_group` takes several"
    )))
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
