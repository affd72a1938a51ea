//! A tunnel for TCP over KCP.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod snappy;
