//! A listener on several sockets with the same address, each with a driver of its own.
//!
//! The system sends all datagrams of one peer to the same socket, as long as the group stays as it
//! is. So it is complete before the first driver starts, and no socket of it is closed before the
//! last driver has ended. Nothing is shared but the queue of conversations to accept, and the memory
//! of what opened one.

use std::io;
use std::net::SocketAddr;

use tokio::net::ToSocketAddrs;

use super::Endpoint;
use crate::config::Config;
use crate::driver::Driver;
use crate::driver::replay_filter::ReplayFilter;
use crate::listener::AcceptQueue;
use crate::sys::{Socket, UdpSocket};
use crate::util::sync::{Arc, Mutex};

/// What the drivers of a group share.
pub(super) struct Group {
    openings: Arc<Mutex<ReplayFilter>>,
}

impl Group {
    pub(super) fn join<S: Socket>(&self, driver: &mut Driver<S>) {
        driver.share_initial_nonces(self.openings.clone());
    }
}

impl Endpoint {
    /// Binds the sockets of a listener.
    pub(crate) async fn bind_listener(
        addr: impl ToSocketAddrs,
        config: Config,
        accept: &Arc<AcceptQueue>,
    ) -> io::Result<Self> {
        Self::bind_first(addr, config, |addr, config| Self::start_group(addr, &config, accept))
            .await
    }

    fn start_group(
        addr: SocketAddr,
        config: &Config,
        accept: &Arc<AcceptQueue>,
    ) -> io::Result<Self> {
        let sockets = UdpSocket::bind_group(addr, &config.socket)?;
        let group = (sockets.len() > 1)
            .then(|| Group { openings: Arc::new(Mutex::new(ReplayFilter::of_initials())) });
        let mut others = Vec::new();
        for socket in sockets {
            let (config, accept) = (config.clone(), Some(accept.clone()));
            others.push(Self::spawn(socket, config, accept, group.as_ref())?);
        }
        let mut first = others.swap_remove(0);
        first.sibling_shards = group.map(|_| others.into());
        Ok(first)
    }

    /// Itself, and the others of its group.
    pub(super) fn shards(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.sibling_shards.iter().flat_map(|others| others.iter()))
    }

    /// Refuses what needs a socket with an address of its own: answers to it may come in at any
    /// socket of the group.
    pub(super) fn reject_sharded(&self, what: &str) -> io::Result<()> {
        if !self.mailbox.is_shard() {
            return Ok(());
        }
        let text = format!("an endpoint whose address several sockets share cannot {what}");
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }
}
