//! Sessions and their streams, over carriers of the test. Programs of their own count allocations.

#[path = "../common/mod.rs"]
mod common;

mod abandoned;
mod carriers;
mod chunks;
mod ending;
mod live;
mod replay;
mod rules;
mod settings;
mod shares;
mod stress;
mod tasks;
