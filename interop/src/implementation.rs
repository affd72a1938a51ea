//! Every implementation by name.

use crate::link::Rng;
use crate::others::{CCore, RustPort};
use crate::ours::Ours;
use crate::peer::{Peer, Settings};

/// The implementations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    /// The C library.
    C,
    /// The Rust port of it.
    Rust,
    /// This crate.
    Ours,
}

impl Implementation {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::C, Self::Rust, Self::Ours];

    /// One side with these settings.
    ///
    /// # Errors
    ///
    /// When the implementation rejects the settings.
    pub fn build(
        self,
        conv: u32,
        settings: &Settings,
        rng: &mut Rng,
    ) -> anyhow::Result<Box<dyn Peer>> {
        Ok(match self {
            Self::C => Box::new(CCore::new(conv, settings)?),
            Self::Rust => Box::new(RustPort::new(conv, settings)?),
            Self::Ours => Box::new(Ours::new(conv, settings, rng, |config| config)?),
        })
    }
}
