//! `SocketConfig`: options of the UDP socket.

use crate::error::ConfigError;

/// Bytes of the longest name of a network interface (`IFNAMSIZ` - 1).
const MAX_DEVICE_LEN: u64 = 15;

/// Most sockets with one address.
#[cfg(any(target_os = "linux", target_os = "android"))]
const MOST_SHARDS: u64 = 64;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const MOST_SHARDS: u64 = 1;

/// Options of UDP sockets; the setters of [`Config`](super::Config) document them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocketConfig {
    pub(crate) send_buffer_size: Option<usize>,
    pub(crate) recv_buffer_size: Option<usize>,
    pub(crate) only_v6: bool,
    pub(crate) dscp: Option<u8>,
    pub(crate) ttl: Option<u32>,
    pub(crate) device: Option<String>,
    pub(crate) shards: usize,
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
