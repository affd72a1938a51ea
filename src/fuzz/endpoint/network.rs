//! Addresses of a run, and datagrams on the way between them.

use std::net::SocketAddr;

use crate::fuzz::wire::addr;

pub(super) const SERVER: u8 = 0;
pub(super) const CLIENT: u8 = 1;
/// Another address that the client's datagrams may come from.
pub(super) const ELSEWHERE: u8 = 2;
/// Places of the server and the client in what there is for each side.
pub(super) const SERVER_SIDE: usize = 0;
pub(super) const CLIENT_SIDE: usize = 1;

/// A datagram on the way.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) to: SocketAddr,
    pub(super) from: SocketAddr,
    pub(super) bytes: Vec<u8>,
    /// It is not where and when its sender sent it.
    pub(super) foreign: bool,
}

/// The side that receives what is sent to `to`: the client at both its addresses.
pub(super) fn receiver_of(to: SocketAddr) -> Option<usize> {
    if to == addr(SERVER) {
        Some(SERVER_SIDE)
    } else {
        [addr(CLIENT), addr(ELSEWHERE)].contains(&to).then_some(CLIENT_SIDE)
    }
}
