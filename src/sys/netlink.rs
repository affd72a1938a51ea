//! Changes of addresses, routes, rules and links, as Linux reports them (rtnetlink(7)), and the source
//! address that the routes choose.
//!
//! A thread reads the reports of a network namespace: in most processes there is one. It starts with the
//! first watcher, and ends at the first change without a watcher. A report is not parsed: it means that
//! something may have changed.

use std::collections::HashMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::sync::{LazyLock, Weak};
use std::thread;
use std::time::Duration;

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr as NetlinkAddr};
use socket2::{Domain, Protocol, SockRef, Type};

use super::network::NetworkWatcher;
use crate::trace;
use crate::util::path::canonical;
use crate::util::sync::{Arc, AtomicBool, Mutex, Ordering, lock};

/// Multicast groups. The group of links belongs to them: Linux reports no route that is gone with its link.
const GROUPS: i32 = libc::RTMGRP_LINK
    | libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV6_ROUTE
    | libc::RTMGRP_IPV4_RULE
    | 1 << (libc::RTNLGRP_IPV6_RULE - 1);

/// How long the thread waits for further reports of a change: an address that goes takes its routes with it.
const SETTLE_TIME: Duration = Duration::from_millis(20);
/// How long the thread then rests: watchers are told at most five times a second.
const REST: Duration = Duration::from_millis(180);
/// Most reports that are taken as one change. The socket buffer has a few hundred.
const MAX_REPORTS: usize = 10_000;

/// Inode of a network namespace; `None` where /proc is not mounted.
type Namespace = Option<u64>;
type Watchers = Vec<Weak<dyn NetworkWatcher>>;

/// The watchers of each namespace that has a thread.
static WATCHERS: LazyLock<Mutex<HashMap<Namespace, Watchers>>> = LazyLock::new(Mutex::default);

/// True once a failure was logged.
static LOGGED: AtomicBool = AtomicBool::new(false);

/// Tells `watcher` of changes in the network namespace of this thread, until it is dropped. Without
/// permission for a netlink socket it is told of none.
pub(crate) fn watch_network(watcher: Weak<dyn NetworkWatcher>) {
    let namespace = fs::metadata("/proc/thread-self/ns/net").map(|file| file.ino()).ok();
    // Held while the thread starts, so that there is one.
    let mut all = lock(&WATCHERS);
    if let Some(watchers) = all.get_mut(&namespace) {
        if watchers.len() == watchers.capacity() {
            // Amortised: the list has doubled since the last cleanup.
            watchers.retain(|watcher| watcher.strong_count() > 0);
            watchers.reserve(watchers.len().max(16));
        }
        watchers.push(watcher);
        return;
    }
    match start(namespace) {
        Ok(()) => drop(all.insert(namespace, vec![watcher])),
        Err(error) => {
            drop(all);
            log_failure(&error);
        }
    }
}

fn log_failure(error: &io::Error) {
    if !LOGGED.swap(true, Ordering::Relaxed) {
        trace::network_not_watched(error);
    }
}

/// Starts the thread of a namespace.
fn start(namespace: Namespace) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind(&NetlinkAddr::new(0, GROUPS.cast_unsigned()))?;
    let thread = thread::Builder::new().name("kcpx-netlink".into());
    thread.spawn(move || run(namespace, &socket)).map(drop)
}

/// The thread. Holds no lock while it waits or tells watchers.
fn run(namespace: Namespace, socket: &Socket) {
    loop {
        let changed = take_report(socket, 0);
        thread::sleep(SETTLE_TIME);
        let mut left = MAX_REPORTS;
        while left > 0 && take_report(socket, libc::MSG_DONTWAIT).is_ok() {
            left -= 1;
        }
        // Without reports the watchers are told a last time.
        let Some(watchers) = live(namespace, changed.is_ok()) else { return };
        watchers.iter().for_each(|watcher| watcher.on_network_changed());
        drop(watchers);
        if let Err(error) = changed {
            return log_failure(&error);
        }
        thread::sleep(REST);
    }
}

/// Takes a report, or the notice of an overrun: then reports are lost, and there was a change (ENOBUFS).
///
/// # Errors
///
/// When there is none, or none can be received.
fn take_report(socket: &Socket, flags: i32) -> io::Result<()> {
    loop {
        // A longer report is cut.
        match socket.recv(&mut &mut [0_u8; 64][..], flags) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(()),
            result => return result.map(drop),
        }
    }
}

/// The watchers of a namespace that are left. `None` if there is none: the thread then ends. `stays`: whether
/// it goes on otherwise.
fn live(namespace: Namespace, stays: bool) -> Option<Vec<Arc<dyn NetworkWatcher>>> {
    let mut all = lock(&WATCHERS);
    let watchers = all.get_mut(&namespace)?;
    watchers.retain(|watcher| watcher.strong_count() > 0);
    let live: Vec<_> = watchers.iter().filter_map(Weak::upgrade).collect();
    if live.is_empty() || !stays {
        all.remove(&namespace);
    }
    (!live.is_empty()).then_some(live)
}

/// The source address of datagrams that `socket` sends to `peer`, as the routes are now. `None` if no route
/// leads there, or the address or device that `socket` is bound to is gone. Sends nothing.
pub(super) fn source_for(socket: &UdpSocket, peer: SocketAddr) -> Option<IpAddr> {
    let chosen = || -> io::Result<Option<SocketAddr>> {
        let (mut local, domain) = (canonical(socket.local_addr()?), Domain::for_address(peer));
        let probe = socket2::Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        if let Some(device) = SockRef::from(socket).device()? {
            // Linux before 5.7 asks for a privilege, which may be dropped: then any device counts.
            drop(probe.bind_device(Some(&device)));
        }
        if !local.ip().is_unspecified() {
            local.set_port(0);
            probe.bind(&local.into())?;
        }
        probe.connect(&peer.into())?;
        Ok(probe.local_addr()?.as_socket())
    };
    chosen().ok().flatten().map(|source| source.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ignore;

    impl NetworkWatcher for Ignore {
        fn on_network_changed(&self) {}
    }

    #[test]
    fn thread_ends_once_no_watcher_is_left() {
        // No thread has this namespace.
        let namespace = Some(u64::MAX);
        let [one, other] = [(); 2].map(|()| Arc::new(Ignore));
        let watchers: Watchers = vec![Arc::downgrade(&one) as _, Arc::downgrade(&other) as _];
        drop(lock(&WATCHERS).insert(namespace, watchers));
        assert_eq!(live(namespace, true).unwrap().len(), 2);
        drop(one);
        assert_eq!(live(namespace, true).unwrap().len(), 1);
        drop(other);
        assert!(live(namespace, true).is_none());
        assert!(!lock(&WATCHERS).contains_key(&namespace));
    }

    #[test]
    fn source_is_the_bound_address_or_the_choice_of_the_routes() {
        let source = |bound: &str, peer: &str| {
            let socket = UdpSocket::bind(bound).unwrap();
            source_for(&socket, peer.parse().unwrap()).map(|ip| ip.to_string())
        };
        assert_eq!(source("0.0.0.0:0", "127.0.0.1:9").as_deref(), Some("127.0.0.1"));
        assert_eq!(source("127.0.0.2:0", "127.0.0.1:9").as_deref(), Some("127.0.0.2"));
        // No route leads from the loopback interface to another host.
        assert_eq!(source("127.0.0.2:0", "192.0.2.1:9"), None);
    }
}
