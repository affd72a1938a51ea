//! Shards: several sockets bound to one address (SO_REUSEPORT), each with a driver of its own.
//!
//! The system delivers all datagrams from one address to the same socket while the set of sockets does
//! not change. So all sockets are bound before the first driver starts, and none is closed before the
//! last driver has ended. The drivers share only the accept queue and a [`ShardState`].

use std::io;
use std::net::SocketAddr;

use crate::config::SocketConfig;
use crate::driver::shard_state::ShardState;
use crate::sys::UdpSocket;

/// The sockets of a listener and the state their drivers share.
pub(super) struct ShardGroup {
    pub(super) sockets: Vec<UdpSocket>,
    /// `None` for a single socket.
    pub(super) state: Option<ShardState>,
}

impl ShardGroup {
    /// Binds [`SocketConfig::shards`] sockets.
    pub(super) fn bind(addr: SocketAddr, config: &SocketConfig) -> io::Result<Self> {
        Ok(Self::of(UdpSocket::bind_group(addr, config)?))
    }

    /// Adopts sockets that are bound to one address. `wanted` is [`SocketConfig::shards`].
    pub(super) fn adopt(sockets: Vec<std::net::UdpSocket>, wanted: usize) -> io::Result<Self> {
        let mut addrs = Vec::new();
        for socket in &sockets {
            addrs.push(socket.local_addr()?);
        }
        let Some(addr) = addrs.first() else {
            return Err(invalid("the list of sockets is empty: pass at least one"));
        };
        if let Some(other) = addrs.iter().find(|other| *other != addr) {
            return Err(invalid(&format!(
                "the sockets must be bound to one address, got {addr} and {other}"
            )));
        }
        if addr.port() == 0 {
            return Err(invalid("a socket is not bound: bind it first"));
        }
        check_shards(wanted, sockets.len())?;
        Ok(Self::of(UdpSocket::adopt_group(sockets)?))
    }

    fn of(sockets: Vec<UdpSocket>) -> Self {
        let state = (sockets.len() > 1).then(ShardState::new);
        Self { sockets, state }
    }
}

/// Checks that a configuration for adopted sockets does not ask for another number of them.
pub(super) fn check_shards(wanted: usize, sockets: usize) -> io::Result<()> {
    if wanted == 1 || wanted == sockets {
        return Ok(());
    }
    Err(invalid(&format!(
        "shards (sockets) must be 1 or the number of sockets passed, {sockets}, got {wanted}; \
         `KcpListener::from_std_group` takes several"
    )))
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
