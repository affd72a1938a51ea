//! What the drivers of a sharded listener (SO_REUSEPORT) share.

use super::Driver;
use crate::driver::admission::replay::ReplayFilter;
use crate::driver::routing::LiveConvs;
use crate::sys::Socket;
use crate::util::sync::{Arc, Mutex};

#[derive(Clone, Debug)]
pub(crate) struct ShardState {
    /// Otherwise a replayed initial datagram could open a connection at each shard.
    initial_nonces: Arc<Mutex<ReplayFilter>>,
    /// Otherwise a copy of a ping, from an address of another shard, would draw a RST.
    live_convs: Arc<Mutex<LiveConvs>>,
}

impl ShardState {
    pub(crate) fn new() -> Self {
        let initial_nonces = Arc::new(Mutex::new(ReplayFilter::of_initials()));
        Self { initial_nonces, live_convs: Arc::default() }
    }
}

impl<S: Socket> Driver<S> {
    /// Makes this driver one of several shards. Called before the first connection.
    pub(crate) fn join_shards(&mut self, state: ShardState) {
        self.initial_nonces = state.initial_nonces;
        self.demux.share_convs(state.live_convs);
    }
}
