//! [`NetworkWatcher`] learns that addresses or routes of this host may have changed (feature `netlink`, on
//! Linux).

#[cfg(not(all(feature = "netlink", target_os = "linux")))]
use std::sync::Weak;

/// Whether changes are noticed.
pub(crate) const WATCHES_NETWORK: bool = cfg!(all(feature = "netlink", target_os = "linux"));

/// A receiver of changes of the network.
pub(crate) trait NetworkWatcher: Send + Sync {
    /// Addresses or routes of this host may have changed. Does not block.
    #[cfg_attr(
        not(all(feature = "netlink", target_os = "linux")),
        allow(dead_code, reason = "only tests call it without the feature")
    )]
    fn on_network_changed(&self);
}

/// Does nothing: changes are noticed only on Linux, with the feature `netlink`.
#[cfg(not(all(feature = "netlink", target_os = "linux")))]
pub(crate) fn watch_network(_: Weak<dyn NetworkWatcher>) {}
