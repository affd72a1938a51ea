//! Binding sockets and starting their drivers.

use std::io;
use std::net::SocketAddr;

use tokio::net::{ToSocketAddrs, lookup_host};

use super::port_reuse::Bound;
use super::shards::{ShardGroup, check_shards};
use super::{Endpoint, port_reuse};
use crate::config::Config;
use crate::driver::Driver;
use crate::driver::shard_state::ShardState;
use crate::driver::task::DriverTask;
use crate::error::unresolved;
use crate::shared::accept_queue::AcceptQueue;
use crate::shared::requests::{RequestQueue, TimeWaitEntry};
use crate::sys::{Socket, UdpSocket};
use crate::util::sync::Arc;

/// Parts of a new driver that other drivers share or leave behind.
#[derive(Debug, Default)]
pub(super) struct SocketContext {
    /// Queue of passively opened connections.
    pub(super) accept: Option<Arc<AcceptQueue>>,
    /// State shared by the drivers of several shards.
    pub(super) shard_state: Option<ShardState>,
    /// Connections in TIME-WAIT of the port's previous endpoints.
    pub(super) time_wait: Vec<TimeWaitEntry>,
}

impl Endpoint {
    /// Binds one socket to the first resolved address that can be bound.
    pub(super) async fn bind_socket(
        addr: impl ToSocketAddrs,
        config: Box<Config>,
    ) -> io::Result<Self> {
        Self::bind_first(addr, config, |addr, config, time_wait| {
            Self::start(addr, config, SocketContext { time_wait, ..SocketContext::default() })
        })
        .await
    }

    /// Binds the sockets of a listener and starts a driver for each.
    pub(crate) async fn bind_listener(
        addr: impl ToSocketAddrs,
        config: Box<Config>,
        accept: &Arc<AcceptQueue>,
    ) -> io::Result<Self> {
        Self::bind_first(addr, config, |addr, config, time_wait| {
            Self::start_group(addr, &config, accept, &time_wait)
        })
        .await
    }

    /// The configuration is boxed to keep the callers' futures small.
    async fn bind_first(
        addr: impl ToSocketAddrs,
        config: Box<Config>,
        start: impl Fn(SocketAddr, Config, Vec<TimeWaitEntry>) -> io::Result<Self>,
    ) -> io::Result<Self> {
        config.validate()?;
        let mut failure = None;
        for addr in lookup_host(addr).await? {
            let mut bound = start(addr, Config::clone(&config), Vec::new());
            if bound.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse) {
                let time_wait = Box::pin(port_reuse::release(addr, &config.socket)).await;
                bound = start(addr, Config::clone(&config), time_wait);
            }
            match bound {
                Ok(endpoint) => return Ok(endpoint),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(unresolved))
    }

    /// Binds a socket and starts its driver. The configuration is validated.
    pub(super) fn start(
        addr: SocketAddr,
        config: Config,
        context: SocketContext,
    ) -> io::Result<Self> {
        Self::spawn_on(UdpSocket::bind(addr, &config.socket)?, config.into(), context)
    }

    /// Starts the driver of a UDP socket, whose port a later endpoint may take over.
    pub(super) fn spawn_on(
        socket: UdpSocket,
        config: Arc<Config>,
        context: SocketContext,
    ) -> io::Result<Self> {
        let bound = Bound::new(&socket, &config.socket);
        let endpoint = Self::spawn(socket, config, context)?;
        port_reuse::register(&endpoint.requests, bound);
        Ok(endpoint)
    }

    pub(crate) fn adopt_socket(
        socket: std::net::UdpSocket,
        config: Config,
        accept: Option<Arc<AcceptQueue>>,
    ) -> io::Result<Self> {
        config.validate()?;
        check_shards(config.socket.shards, 1)?;
        let context = SocketContext { accept, ..SocketContext::default() };
        Self::spawn_on(UdpSocket::from_std(socket)?, config.into(), context)
    }

    /// Adopts the sockets of a listener and starts a driver for each.
    pub(crate) fn adopt_group(
        sockets: Vec<std::net::UdpSocket>,
        config: &Config,
        accept: &Arc<AcceptQueue>,
    ) -> io::Result<Self> {
        config.validate()?;
        let group = ShardGroup::adopt(sockets, config.socket.shards)?;
        let config = config.clone().shards(group.sockets.len());
        config.validate()?;
        Self::spawn_group(group, &config, accept, &[])
    }

    fn start_group(
        addr: SocketAddr,
        config: &Config,
        accept: &Arc<AcceptQueue>,
        time_wait: &[TimeWaitEntry],
    ) -> io::Result<Self> {
        let group = ShardGroup::bind(addr, &config.socket)?;
        Self::spawn_group(group, config, accept, time_wait)
    }

    fn spawn_group(
        ShardGroup { sockets, state }: ShardGroup,
        config: &Config,
        accept: &Arc<AcceptQueue>,
        time_wait: &[TimeWaitEntry],
    ) -> io::Result<Self> {
        let (mut shards, config) = (Vec::new(), Arc::new(config.clone()));
        for socket in sockets {
            // After a restart the system may deliver a peer's datagrams to another shard.
            let (accept, time_wait) = (Some(accept.clone()), time_wait.to_vec());
            let context = SocketContext { accept, shard_state: state.clone(), time_wait };
            shards.push(Self::spawn_on(socket, config.clone(), context)?);
        }
        let mut first = shards.swap_remove(0);
        first.sibling_shards = state.map(|_| shards.into());
        Ok(first)
    }

    pub(super) fn spawn<S: Socket + Unpin>(
        socket: S,
        config: impl Into<Arc<Config>>,
        context: SocketContext,
    ) -> io::Result<Self> {
        let SocketContext { accept, shard_state, time_wait } = context;
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(io::Error::other)?;
        let requests = RequestQueue::with_sharded(shard_state.is_some());
        let now = tokio::time::Instant::now().into_std();
        let mut driver = Driver::new(socket, config, requests.clone(), accept, seed, now)?;
        if let Some(state) = shard_state {
            driver.join_shards(state);
        }
        driver.inherit_time_wait(time_wait);
        let endpoint = Self::attach(requests);
        #[expect(clippy::disallowed_methods, reason = "the one task of a socket")]
        drop(tokio::spawn(DriverTask::new(driver)));
        Ok(endpoint)
    }
}
