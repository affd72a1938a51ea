//! [`ConnId`]: identifies a connection within its endpoint.

/// Slot and generation. A reused slot has a new generation, so that notifications of an ended connection
/// never reach its successor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ConnId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}
