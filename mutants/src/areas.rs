//! Areas of the code, and the tests that judge their mutants.

use clap::ValueEnum;

/// A part of the code. Each belongs to one package, whose tests judge it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Area {
    /// The KCP state machine, src/core.
    Core,
    /// Reed-Solomon, src/fec.
    Fec,
    /// Packet ciphers, src/crypto.
    Crypto,
    /// One task per socket, src/driver.
    Driver,
    /// All of kcpx-smux.
    Smux,
    /// Options of kcpx-tunnel, tunnel/src/options.
    Tunnel,
}

/// A package with areas in it.
#[derive(Debug, PartialEq, Eq)]
pub struct Judge {
    pub package: &'static str,
    /// The root of its library.
    pub root: &'static str,
    /// The test programs, as arguments of `cargo test`.
    pub tests: &'static [&'static str],
}

// The integration programs that use the library as applications do.
const KCPX: Judge = Judge {
    package: "kcpx",
    root: "src/lib.rs",
    tests: &["--lib", "--test=api", "--test=vectors"],
};

const SMUX: Judge = Judge { package: "kcpx-smux", root: "smux/src/lib.rs", tests: &["--tests"] };

const TUNNEL: Judge =
    Judge { package: "kcpx-tunnel", root: "tunnel/src/lib.rs", tests: &["--lib"] };

impl Area {
    pub fn judge(self) -> &'static Judge {
        match self {
            Self::Core | Self::Fec | Self::Crypto | Self::Driver => &KCPX,
            Self::Smux => &SMUX,
            Self::Tunnel => &TUNNEL,
        }
    }

    /// Whether the file at `path`, relative to the workspace, is part of the area.
    pub fn has(self, path: &str) -> bool {
        path.starts_with(match self {
            Self::Core => "src/core",
            Self::Fec => "src/fec",
            Self::Crypto => "src/crypto",
            Self::Driver => "src/driver",
            Self::Smux => "smux/src",
            Self::Tunnel => "tunnel/src/options",
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Fec => "fec",
            Self::Crypto => "crypto",
            Self::Driver => "driver",
            Self::Smux => "smux",
            Self::Tunnel => "tunnel/options",
        }
    }
}
