//! Working memory of one turn, kept between turns so that a turn allocates nothing.
//!
//! Between two turns every collection is empty and keeps its capacity (tests/allocations.rs counts the
//! allocations of whole transfers).

use std::collections::VecDeque;
use std::task::Waker;

use bytes::Bytes;

use crate::config::Setting;
use crate::shared::notifier::ConnId;
use crate::shared::requests::Request;
use crate::shared::send_queue::Outgoing;

#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Tasks to wake at the end of the turn, after the statistics are published.
    pub(super) wakers: Vec<Waker>,
    /// Writes taken from the send queue of one connection.
    pub(super) outgoing: VecDeque<Outgoing>,
    /// Payload on its way to the receive queue of one connection.
    pub(super) chunks: VecDeque<Bytes>,
    /// Datagrams that FEC reconstructed from one shard, with their connections.
    pub(super) recovered: Vec<(ConnId, Vec<u8>)>,
    /// Connections with queues that handles changed since the last turn.
    pub(super) ids: Vec<ConnId>,
    /// Settings that handles changed since the last turn, in the order of the calls.
    pub(super) settings: Vec<(ConnId, Setting)>,
    /// Requests of endpoint handles since the last turn.
    pub(super) requests: Vec<Request>,
    /// Connections with an ACK that this turn delays.
    pub(super) delayed_acks: Vec<ConnId>,
    /// Slots with an expired timer.
    pub(super) expired: Vec<usize>,
}
