//! Helpers without protocol or I/O.

pub(crate) mod buffer_pool;
pub(crate) mod queue;
pub(crate) mod sync;
