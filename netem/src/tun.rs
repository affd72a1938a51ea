//! A TUN device, which hands packets to a program.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;

use anyhow::Context as _;

use crate::netlink;

/// Bytes of the kernel's `struct ifreq` on every platform, and where its flags are.
const REQUEST: usize = 40;
const FLAGS: usize = 16;

/// A device of the namespace it was made in. It is gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Tun {
    file: File,
    /// Its number in the namespace.
    index: u32,
}

impl Tun {
    /// Makes a device and puts it into service: address, largest packet in bytes, and the packets
    /// that the kernel holds until they are read.
    pub(crate) fn new(
        name: &CStr,
        address: Ipv4Addr,
        mtu: u32,
        queue: u32,
    ) -> anyhow::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
        let file = options.open("/dev/net/tun").context(
            "cannot open /dev/net/tun: load the module tun if it is missing (into a container, pass \
             the device), and give this user permission to read and write it",
        )?;
        let index = attach(&file, name).context(
            "cannot make a TUN device: run this as root (in a container, with CAP_NET_ADMIN), or allow \
             user namespaces",
        )?;
        netlink::add_address(index, address).context("the address of the TUN device")?;
        netlink::configure(index, mtu, queue).context("the queue of the TUN device")?;
        Ok(Self { file, index })
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Takes a packet from the kernel, or fails with `WouldBlock`.
    pub(crate) fn recv(&self, packet: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(packet)
    }

    /// Hands a packet to the kernel.
    pub(crate) fn send(&self, packet: &[u8]) -> io::Result<()> {
        (&self.file).write(packet).map(drop)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Makes the device behind the file, without headers before its packets; its number.
#[expect(unsafe_code, reason = "the standard library has neither ioctl nor if_nametoindex")]
fn attach(file: &File, name: &CStr) -> io::Result<u32> {
    let mut request = [0_u8; REQUEST];
    let bytes = name.to_bytes();
    // The last of its 16 bytes ends the name.
    let field = request[..FLAGS - 1].get_mut(..bytes.len()).ok_or(io::ErrorKind::InvalidInput)?;
    field.copy_from_slice(bytes);
    // Both are small.
    let flags = (libc::IFF_TUN | libc::IFF_NO_PI) as u16;
    request[FLAGS..FLAGS + 2].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, which has no more bytes than `request`, and
    // whose fields may have any alignment: the kernel copies it.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, request.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a string that ends with 0 and lives for the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}
