//! Which program a transport is measured in.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context as _;
use tokio::process::Command;

use crate::args::{EXTERNAL, Peer};

/// The programs of one measurement.
#[derive(Clone)]
pub(crate) struct Programs {
    together: PathBuf,
    apart: Option<PathBuf>,
    external: Option<OsString>,
}

impl Programs {
    /// Finds them, and builds missing ones: cargo makes one set of features for all crates of a build, and
    /// the features of kcpx would slow rust_tokio_kcp down (Cargo.toml says why).
    pub(crate) async fn of(mut peers: impl Iterator<Item = Peer>) -> anyhow::Result<Self> {
        let together = env::current_exe()?;
        let mut apart = None;
        if peers.any(|peer| peer == Peer::RustTokioKcp) {
            let target = together.ancestors().nth(2).context("no target directory")?.join("apart");
            let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let built = Command::new(cargo)
                .args(["build", "--release", "--no-default-features", "--features", "apart"])
                .arg("--manifest-path")
                .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
                .arg("--target-dir")
                .arg(&target)
                .status();
            let name = together.file_name().context("a program without a name")?;
            // Otherwise its cells are empty; cargo has said why.
            if built.await.is_ok_and(|status| status.success()) {
                apart = Some(target.join("release").join(name));
            }
        }
        Ok(Self { together, apart, external: env::var_os(EXTERNAL) })
    }

    /// The program of a transport.
    pub(crate) fn program(&self, peer: Peer) -> anyhow::Result<OsString> {
        match peer {
            Peer::KcpGo => self.external.clone().context(EXTERNAL),
            Peer::RustTokioKcp => Ok(self.apart.clone().context("it could not be built")?.into()),
            _ => Ok(self.together.clone().into()),
        }
    }
}
