//! One end of a path: a network namespace with a device for each cable.
//!
//! It owns a thread that lives in the namespace and starts whatever else is to live there. The
//! namespace has no name and ends with those who are in it, so nothing is left behind however the
//! process ends.

use std::ffi::CString;
use std::fmt;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, anyhow};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

use crate::netlink;
use crate::tun::Tun;

/// Beginning of the name of each device; the number of the cable follows.
const DEVICE: &str = "path";
/// Packets that the kernel holds while the relay is not running.
const QUEUE: u32 = 65_536;
const MTU: u32 = 1_500;
/// The routing table of the second cable; the next ones have the numbers above.
const TABLE: u32 = 101;

type Job = Box<dyn FnOnce() + Send>;

/// One end of a [`Path`](crate::Path).
pub struct End {
    /// On the first cable.
    address: Ipv4Addr,
    /// One for each cable.
    addresses: Vec<Ipv4Addr>,
    devices: Vec<Arc<Tun>>,
    /// Jobs for the thread in the namespace. It ends when this is closed.
    jobs: Sender<Job>,
}

/// Packets that the kernel dropped at one end. A snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct KernelCounts {
    /// Datagrams that a full receive buffer of a socket could not hold.
    pub udp_receive_drops: u64,
    /// Datagrams that were not sent for want of buffers.
    pub udp_send_drops: u64,
    /// Packets that the relay was too slow to take. The conditions did not ask for it: a measurement with
    /// any of these does not count.
    pub device_drops: u64,
}

impl End {
    /// `address`: on the first cable; `others`: one for each further cable.
    pub(crate) fn new(address: Ipv4Addr, others: &[Ipv4Addr]) -> anyhow::Result<Self> {
        let addresses = [&[address], others].concat();
        let (jobs, work) = channel();
        let (reply, answer) = channel();
        let at = addresses.clone();
        thread::Builder::new().name(format!("end {address}")).spawn(move || {
            // The creator of this end has the answer, or is gone.
            let made = enter(&at);
            let usable = made.is_ok();
            if reply.send(made).is_ok() && usable {
                serve(&work);
            }
        })?;
        let devices = answer.recv().map_err(|_| anyhow!("the thread of {address} is gone"))??;
        Ok(Self { address, addresses, devices: devices.into_iter().map(Arc::new).collect(), jobs })
    }

    /// The address of this end on the first cable. With one cable there is no other beside loopback.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The address of this end on each cable.
    #[must_use]
    pub fn addresses(&self) -> &[Ipv4Addr] {
        &self.addresses
    }

    /// Starts a command at this end.
    ///
    /// It lives on when the path is gone, without a network. Its creator ends it, and a
    /// command that calls [`die_with_parent`](crate::die_with_parent) ends by itself.
    ///
    /// # Errors
    ///
    /// As `Command::spawn`.
    pub fn spawn(&self, mut command: Command) -> io::Result<Child> {
        // By the thread that lives as long as the path, since a child may be tied to it.
        self.ask(move || command.spawn())?
    }

    /// Starts a thread at this end: sockets made there, and threads started there, are at this
    /// end.
    ///
    /// # Errors
    ///
    /// When the system starts no thread.
    pub fn start<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let name = format!("at {}", self.address);
        self.ask(move || thread::Builder::new().name(name).spawn(work))?
    }

    /// Packets that the kernel dropped at this end so far.
    ///
    /// # Errors
    ///
    /// When the system does not report it.
    pub fn kernel(&self) -> anyhow::Result<KernelCounts> {
        self.ask(|| {
            // These name the namespace of the thread that reads them.
            let net = "/proc/thread-self/net";
            let udp = fs::read_to_string(format!("{net}/snmp"))?;
            let devices = fs::read_to_string(format!("{net}/dev"))?;
            let drops = |name| udp_counter(&udp, name).with_context(|| format!("no {name}"));
            anyhow::Ok(KernelCounts {
                udp_receive_drops: drops("RcvbufErrors")?,
                udp_send_drops: drops("SndbufErrors")?,
                device_drops: device_drops(&devices).context("no counters of the device")?,
            })
        })?
    }

    /// The device of each cable.
    pub(crate) fn devices(&self) -> &[Arc<Tun>] {
        &self.devices
    }

    /// Has the thread of this end do something short.
    fn ask<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let gone = || io::Error::other("the thread of this end is gone");
        let (reply, answer) = channel();
        let job = Box::new(move || drop(reply.send(work())));
        self.jobs.send(job).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())
    }
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("End").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

fn serve(work: &Receiver<Job>) {
    for job in work {
        job();
    }
}

/// Puts this thread into a namespace of its own and makes the devices there.
fn enter(addresses: &[Ipv4Addr]) -> anyhow::Result<Vec<Tun>> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|error| match error {
        Errno::EPERM => anyhow!(
            "the system denies a network namespace: run this as root (in a container, with \
             CAP_SYS_ADMIN and CAP_NET_ADMIN), or allow user namespaces"
        ),
        other => anyhow!("making a network namespace: {other}"),
    })?;
    // A new namespace has its loopback down, and always as device 1.
    netlink::up(1).context("loopback in the new namespace")?;
    let mut devices = Vec::new();
    for (cable, address) in addresses.iter().enumerate() {
        let device = Tun::new(&CString::new(format!("{DEVICE}{cable}"))?, *address, MTU, QUEUE)?;
        if cable > 0 {
            let table = TABLE + u32::try_from(cable)? - 1;
            netlink::route_from(*address, device.index(), table)
                .with_context(|| format!("the route from {address}"))?;
        }
        devices.push(device);
    }
    Ok(devices)
}

/// A counter of `/proc/net/snmp`: one line has the names, the next the values.
fn udp_counter(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with("Udp:"));
    let place = lines.next()?.split_whitespace().position(|word| word == name)?;
    lines.next()?.split_whitespace().nth(place)?.parse().ok()
}

/// Packets that the devices could not take for sending, of `/proc/net/dev`.
fn device_drops(text: &str) -> Option<u64> {
    let of_device = |line: &str| -> Option<u64> {
        let (name, counters) = line.split_once(':')?;
        // Eight of what was received come first, then bytes, packets, errors, drops.
        name.trim()
            .starts_with(DEVICE)
            .then(|| counters.split_whitespace().nth(11)?.parse().ok())?
    };
    text.lines().filter_map(of_device).reduce(|sum, drops| sum + drops)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_drop_counters_are_parsed() {
        let udp = "Tcp: A B\nTcp: 1 2\n\
                   Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors\n\
                   Udp: 10 20 30 40 50 60\nUdpLite: RcvbufErrors\nUdpLite: 9\n";
        assert_eq!(udp_counter(udp, "RcvbufErrors"), Some(50));
        assert_eq!(udp_counter(udp, "SndbufErrors"), Some(60));
        assert_eq!(udp_counter(udp, "Other"), None);
        assert_eq!(udp_counter("Udp: RcvbufErrors\n", "RcvbufErrors"), None);

        let devices = "Inter-|   Receive  |  Transmit\n\
                       face |bytes packets errs drop|bytes packets errs drop\n\
                       \x20   lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
                       \x20path0: 1 2 3 4 5 6 7 8 9 10 11 99 13 14 15 16\n\
                       \x20path1: 1 2 3 4 5 6 7 8 9 10 11 5 13 14 15 16\n";
        assert_eq!(device_drops(devices), Some(104));
        assert_eq!(device_drops("lo: 1 2 3"), None);
    }
}
