//! What `ip link set` does, for the namespace of the calling thread.
//!
//! By netlink, since its rules are those of the namespace: the older interface wants root of the
//! whole system for the length of a queue.

use std::os::fd::AsRawFd as _;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

const NEW_LINK: u16 = 16;
const REQUEST_AND_ACK: u16 = 1 | 4;
const UP: u32 = 1;
const QUEUE_LENGTH: u16 = 13;
const HEADER: u32 = 16;

/// Puts a device into service.
pub(crate) fn up(device: u32) -> nix::Result<()> {
    set(device, UP, &[])
}

/// Sets how many packets a device holds that were not read yet.
pub(crate) fn queue(device: u32, packets: u32) -> nix::Result<()> {
    // An attribute: its length, its type, its value.
    let mut attribute = [0; 8];
    attribute[..2].copy_from_slice(&8_u16.to_ne_bytes());
    attribute[2..4].copy_from_slice(&QUEUE_LENGTH.to_ne_bytes());
    attribute[4..].copy_from_slice(&packets.to_ne_bytes());
    set(device, 0, &attribute)
}

fn set(device: u32, flags: u32, attributes: &[u8]) -> nix::Result<()> {
    // Family and type of the device stay open, then its number, the flags, and which to change.
    let mut body = vec![0; 4];
    body.extend(device.to_ne_bytes());
    body.extend(flags.to_ne_bytes());
    body.extend(flags.to_ne_bytes());
    body.extend(attributes);
    let len = HEADER + u32::try_from(body.len()).map_err(|_| Errno::EMSGSIZE)?;
    // Before it the length of all, type, flags; sequence and sender do not matter.
    let mut message = len.to_ne_bytes().to_vec();
    message.extend(NEW_LINK.to_ne_bytes());
    message.extend(REQUEST_AND_ACK.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);

    let netlink = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    sendto(netlink.as_raw_fd(), &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut answer = [0; 256];
    let len = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    // Behind the answer's header stands an error, negative, or 0.
    let code = answer.get(16..20).filter(|_| len >= 20).and_then(|code| code.try_into().ok());
    match code.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(code) => Err(Errno::from_raw(code.wrapping_neg())),
        None => Err(Errno::EBADMSG),
    }
}
