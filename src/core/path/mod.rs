//! What is known of the network path to the peer.

pub(crate) mod mtu;
