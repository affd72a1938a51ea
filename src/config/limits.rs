//! What peers may do: how many conversations, from where, and what becomes of the old ones.

use std::time::Duration;

use crate::crypto::Cipher;
use crate::error::ConfigError;

/// Bounds of one endpoint against strangers. Each of the [`shards`](crate::SocketConfig::shards) of
/// a listener has them for itself, save the one backlog.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Most conversations at once, 1 to 16,777,216. Default 65,536.
    pub max_connections: usize,
    /// Most conversations opened by peers and not yet accepted, 1 to 65,536. Default 1,024.
    pub backlog: usize,
    /// Most conversations opened by peers that have not answered anything yet, and so may not be
    /// where they say they are, 1 to 1,048,576. Default 4,096. While more than half of these places
    /// are taken, one IP address holds at most a sixteenth of them.
    pub max_unvalidated: usize,
    /// How long a peer that opened a conversation may go on without an answer to anything, 1 s to
    /// 1 hour. Default 30 s.
    pub validation_timeout: Duration,
    /// Show a conversation to the application only after its peer has answered something. Default
    /// `false`: it is accepted with its first datagram, a round trip earlier.
    pub require_validation: bool,
}

/// What becomes of the conversations that a peer opened before, when it opens another one from the
/// same address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionPolicy {
    /// They live on, beside the new one. The default.
    #[default]
    KeepBoth,
    /// They end with [`Replaced`](crate::ConnectionError::Replaced), once the peer of the new one
    /// has proved that it is there: kcp-go's choice, which replaces at once.
    Replace,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 65_536,
            backlog: 1_024,
            max_unvalidated: 4_096,
            validation_timeout: Duration::from_secs(30),
            require_validation: false,
        }
    }
}

impl Limits {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        ConfigError::check("max_connections", self.max_connections, 1, 1 << 24)?;
        ConfigError::check("backlog", self.backlog, 1, 1 << 16)?;
        ConfigError::check("max_unvalidated", self.max_unvalidated, 1, 1 << 20)?;
        let timeout = self.validation_timeout.as_millis();
        ConfigError::check("validation_timeout (ms)", timeout, 1_000, 60 * 60 * 1_000)?;
        Ok(())
    }
}

/// Whether a conversation that a peer opened follows the peer to another address, which it has when
/// it changes networks or its NAT forgets it.
///
/// The peer is followed once it has answered a question that was sent to the new address, at most
/// one a second and address. While two conversations with different peers have the same id, neither
/// is followed. A peer of any make answers the question; where both addresses are one's own there is
/// [`Endpoint::rebind`](crate::Endpoint::rebind).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Migration {
    /// An address is a peer's name, as for kcp-go. The default.
    #[default]
    Off,
    /// With an AEAD cipher, whose packets nobody else can make.
    Authenticated,
    /// With any cipher that has a key. Without an AEAD someone on the path can alter packets, and
    /// so lead the conversation away.
    AnyCipher,
}

impl Migration {
    pub(super) fn check(self, cipher: &Cipher) -> Result<(), ConfigError> {
        let needs = match self {
            Self::Authenticated if !cipher.is_aead() => "an AEAD cipher",
            Self::AnyCipher if !cipher.has_key() => "a cipher that has a key",
            _ => return Ok(()),
        };
        Err(ConfigError::Requires { field: "migration", needs })
    }
}
