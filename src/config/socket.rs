//! `SocketConfig`: options of the UDP socket.

use crate::error::ConfigError;

/// Bytes of the longest name of a network interface (`IFNAMSIZ` - 1).
const MAX_DEVICE_LEN: u64 = 15;

/// Most sockets with one address.
#[cfg(any(target_os = "linux", target_os = "android"))]
const MOST_SHARDS: u64 = 64;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const MOST_SHARDS: u64 = 1;

/// Options of UDP sockets that the crate binds. Adopted sockets keep their own.
///
/// ```
/// use kcpx::Config;
///
/// let mut config = Config::new();
/// config.socket.dscp = Some(46); // Expedited forwarding.
/// config.socket.recv_buffer_size = Some(8 << 20);
/// # assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketConfig {
    /// Kernel send buffer in bytes (`SO_SNDBUF`); `None` for the system's default. Default 4 MiB, as in
    /// kcptun. The system may grant less, which is logged once per process (feature `tracing`).
    pub send_buffer_size: Option<usize>,
    /// Kernel receive buffer in bytes (`SO_RCVBUF`); `None` for the system's default. Default 4 MiB, as
    /// in kcptun. The system may grant less, logged like the send buffer. A buffer smaller than a window
    /// loses bursts.
    pub recv_buffer_size: Option<usize>,
    /// Whether an IPv6 socket serves only IPv6 peers (`IPV6_V6ONLY`). Default `false`: a wildcard IPv6
    /// socket serves both.
    pub only_v6: bool,
    /// DSCP of each IP packet, 0 to 63 (kcp-go `SetDSCP`, kcptun `--dscp`), for both IP versions. Default
    /// `None`: the system's, which is 0. Outside Linux and Android it turns GSO off, and wildcard sockets
    /// answer from an address of the system's choice.
    #[doc(alias = "SetDSCP")]
    #[doc(alias = "IP_TOS")]
    pub dscp: Option<u8>,
    /// TTL (IPv4) and hop limit (IPv6), 1 to 255 hops. Default `None`: the system's.
    #[doc(alias = "IP_TTL")]
    pub ttl: Option<u32>,
    /// Name of the network interface, 1 to 15 bytes, such as `eth0`. Default `None`: by route. Linux and
    /// Android only; otherwise binding fails with [`Unsupported`](std::io::ErrorKind::Unsupported). Some
    /// systems require privileges.
    #[doc(alias = "SO_BINDTODEVICE")]
    pub device: Option<String>,
    /// Number of sockets that [`KcpListener::bind_with`](crate::KcpListener::bind_with) binds to its
    /// address (`SO_REUSEPORT`), 1 to 64; only 1 on systems other than Linux and Android. Default 1. Each
    /// socket has its own task, so that a server can use that number of cores. The system distributes
    /// peers by address, which excludes [`Config::migration`](crate::Config::migration). Each socket
    /// costs kernel buffers and tables. Other functions bind one socket; functions that adopt sockets use
    /// those they are given.
    #[doc(alias = "SO_REUSEPORT")]
    pub shards: usize,
}

impl Default for SocketConfig {
    fn default() -> Self {
        let size = Some(4 * 1024 * 1024);
        Self {
            send_buffer_size: size,
            recv_buffer_size: size,
            only_v6: false,
            dscp: None,
            ttl: None,
            device: None,
            shards: 1,
        }
    }
}

impl SocketConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        for (field, size) in [
            ("send_buffer_size (bytes)", self.send_buffer_size),
            ("recv_buffer_size (bytes)", self.recv_buffer_size),
        ] {
            if let Some(size) = size {
                ConfigError::check(field, size, 1, 1 << 30)?;
            }
        }
        ConfigError::check("shards (sockets)", self.shards, 1, MOST_SHARDS)?;
        if let Some(dscp) = self.dscp {
            ConfigError::check("dscp", dscp, 0, 63)?;
        }
        if let Some(ttl) = self.ttl {
            ConfigError::check("ttl (hops)", ttl, 1, 255)?;
        }
        if let Some(device) = &self.device {
            ConfigError::check("length of device (bytes)", device.len(), 1, MAX_DEVICE_LEN)?;
        }
        Ok(())
    }
}
