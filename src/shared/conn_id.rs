//! [`ConnId`]: names a connection of an endpoint inside the process.

/// Slot and generation of a connection. A reused slot has a new generation, so that what was
/// queued for an ended connection never reaches the next one in its slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ConnId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}
