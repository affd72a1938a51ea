//! Addresses of a run, and datagrams in flight between them.

use std::net::SocketAddr;

use crate::fuzz::wire::addr;

pub(super) const SERVER: u8 = 0;
pub(super) const CLIENT: u8 = 1;
/// The client's second source address.
pub(super) const ELSEWHERE: u8 = 2;
/// Index of server and client in arrays by side.
pub(super) const SERVER_SIDE: usize = 0;
pub(super) const CLIENT_SIDE: usize = 1;

/// A datagram in flight.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) to: SocketAddr,
    pub(super) from: SocketAddr,
    pub(super) bytes: Vec<u8>,
    /// It was not sent by its apparent sender at this place and time.
    pub(super) foreign: bool,
}

/// The side that receives datagrams for `to`: the client at both its addresses.
pub(super) fn receiver_of(to: SocketAddr) -> Option<usize> {
    if to == addr(SERVER) {
        Some(SERVER_SIDE)
    } else {
        [addr(CLIENT), addr(ELSEWHERE)].contains(&to).then_some(CLIENT_SIDE)
    }
}
