//! Helpers without protocol and I/O.

pub(crate) mod buffer_pool;
pub(crate) mod coop;
pub(crate) mod deadline;
pub(crate) mod framing;
#[cfg(all(test, loom))]
pub(crate) mod loom;
pub(crate) mod path;
pub(crate) mod queue;
pub(crate) mod sync;
pub(crate) mod table;
pub(crate) mod wake;
