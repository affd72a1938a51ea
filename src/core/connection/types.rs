//! Arguments and errors of the state machine: plain data.

/// How a KCP datagram arrived: the `pktType` of kcp-go's `Input`.
///
/// ```
/// use std::time::Instant;
///
/// use kcpx::fec::{FecDecoder, FecFlag, HEADER_LEN, fec_flag};
/// use kcpx::proto::{Kcp, PacketType};
///
/// fn on_packet(kcp: &mut Kcp, decoder: &mut FecDecoder, now: Instant, packet: &[u8]) {
///     if let (FecFlag::Data, Some(datagram)) = (fec_flag(packet), packet.get(HEADER_LEN..)) {
///         let _ = kcp.input(now, datagram, PacketType::Regular);
///     }
///     decoder.input(now, packet, |datagram| kcp.input(now, datagram, PacketType::Fec).is_ok());
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PacketType {
    /// From the network.
    #[doc(alias = "IKCP_PACKET_REGULAR")]
    Regular,
    /// Reconstructed by FEC: late, so its ACKs are no RTT samples and its `wnd` is ignored.
    #[doc(alias = "IKCP_PACKET_FEC")]
    Fec,
}

/// Random numbers of one connection, drawn by the caller.
///
/// ```
/// use kcpx::proto::Seed;
///
/// let seed = Seed::new(getrandom::u32()?, getrandom::u64()?);
/// # let _ = seed;
/// # Ok::<(), getrandom::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Seed {
    /// First `ts` on the wire, milliseconds.
    pub ts_epoch: u32,
    /// Seed of the ping cookies; must be unpredictable (RFC 9000 8.2.1).
    pub cookie_seed: u64,
}

impl Seed {
    /// `ts_epoch`: first `ts` on the wire, milliseconds. `cookie_seed`: seed of the ping cookies,
    /// which must be unpredictable (RFC 9000 8.2.1). Default of both: 0, for tests.
    #[must_use]
    pub const fn new(ts_epoch: u32, cookie_seed: u64) -> Self {
        Self { ts_epoch, cookie_seed }
    }
}

/// Why a message was not accepted for sending.
///
/// ```
/// use std::time::Instant;
///
/// use kcpx::proto::{Kcp, Seed, SendMessageError};
/// use kcpx::{KcpConfig, Mode};
///
/// let (now, mut config) = (Instant::now(), KcpConfig::new());
/// config.mode = Mode::Message;
/// let mut kcp = Kcp::new(7, &config, now, Seed::default())?;
/// let (size, max) = (kcp.max_message_size() + 1, kcp.max_message_size());
/// let refused = kcp.send_message(now, vec![0; size].into());
/// assert_eq!(refused, Err(SendMessageError::TooLarge { size, max }));
/// # Ok::<(), kcpx::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendMessageError {
    /// The send window has no capacity for the whole message now: try again after the peer has
    /// acknowledged data.
    #[error("the send window is full: send again once the peer has acknowledged data")]
    Full,
    /// The peer could not reassemble the message.
    #[error("message must be at most {max} bytes, got {size}")]
    TooLarge {
        /// Bytes of the message.
        size: usize,
        /// Largest message in bytes, see
        /// [`Kcp::max_message_size`](crate::proto::Kcp::max_message_size).
        max: usize,
    },
}
