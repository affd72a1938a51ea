//! The UDP socket's part of the configuration.

use crate::error::ConfigError;

/// The longest name that systems give a network interface, in bytes.
const DEVICE_NAME: u64 = 15;

/// Most sockets that share an address.
#[cfg(any(target_os = "linux", target_os = "android"))]
const MOST_SHARDS: u64 = 64;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const MOST_SHARDS: u64 = 1;

/// The UDP socket, where the crate makes it. A socket that the application made keeps its own
/// options.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketConfig {
    /// Kernel send buffer in bytes; `None` leaves the system's default. Default 4 MiB, as kcptun.
    /// The system may grant less; the feature `tracing` tells so once in a process.
    pub send_buffer_size: Option<usize>,
    /// Kernel receive buffer in bytes; `None` leaves the system's default. Default 4 MiB, as
    /// kcptun. The system may grant less, which is told as for the send buffer; it should hold a
    /// window, or bursts are lost.
    pub recv_buffer_size: Option<usize>,
    /// For an IPv6 address: refuse IPv4. Default `false`, a wildcard IPv6 socket serves both.
    pub only_v6: bool,
    /// Class of service in each packet's header (DSCP, kcptun's `--dscp`), 0 to 63; the same for
    /// peers of both IP versions. Default `None`: the system's, which is 0. Outside Linux and
    /// Android datagrams then leave one by one.
    pub dscp: Option<u8>,
    /// Routers that a packet may pass, 1 to 255: the time to live of IPv4, the hop limit of IPv6.
    /// Default `None`: the system's.
    pub ttl: Option<u32>,
    /// Name of the one network interface to use, 1 to 15 bytes, such as `eth0`. Default `None`: the
    /// routes decide. Linux and Android only; elsewhere binding fails with
    /// [`Unsupported`](std::io::ErrorKind::Unsupported). Some systems ask for privileges.
    pub device: Option<String>,
    /// Sockets that [`KcpListener::bind_with`](crate::KcpListener::bind_with) binds to its address,
    /// 1 to 64, and elsewhere than on Linux and Android 1. Default 1. Each has a task of its own, so
    /// that a server uses as many cores; the system spreads peers over them by address, so no
    /// conversation can follow its peer to another one
    /// ([`Config::migration`](crate::Config::migration)). What it costs: each has its kernel buffers
    /// and tables. Whatever else makes a socket makes one.
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
            ConfigError::check("length of device (bytes)", device.len(), 1, DEVICE_NAME)?;
        }
        Ok(())
    }
}
