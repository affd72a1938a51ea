//! `ip link set`, `ip address add`, `ip route add` and `ip rule add` for the namespace of the calling
//! thread.
//!
//! By netlink, since root of the namespace may use it: the older ioctl wants root of the whole system for
//! the length of a queue.

use std::io::{self, Read as _, Write as _};
use std::net::Ipv4Addr;

use socket2::{Domain, Protocol, Socket, Type};

const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const NEW_RULE: u16 = 32;
const REQUEST_AND_ACK: u16 = 1 | 4;
const CREATE: u16 = 0x400;
const UP: u32 = 1;
const HEADER: usize = 16;

// Attributes of a link, and of an address.
const MTU: u16 = 4;
const QUEUE_LENGTH: u16 = 13;
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;

// Attributes of a route, and of a rule.
const OUTPUT: u16 = 4;
const ROUTE_TABLE: u16 = 15;
const SOURCE: u16 = 2;
const RULE_TABLE: u16 = 15;
/// The action of a rule that names a table.
const TO_TABLE: u8 = 1;

/// Bits of a network of two hosts.
const PREFIX: u8 = 30;

/// Puts a device into service.
pub(crate) fn up(device: u32) -> io::Result<()> {
    set(device, &[])
}

/// Puts a device into service with this MTU in bytes, and this many packets that wait to be read.
pub(crate) fn configure(device: u32, mtu: u32, queue: u32) -> io::Result<()> {
    let [mtu, queue] = [(MTU, mtu), (QUEUE_LENGTH, queue)]
        .map(|(name, value)| attribute(name, value.to_ne_bytes()));
    set(device, &[mtu, queue].concat())
}

/// Gives a device an address in a network of two hosts.
pub(crate) fn add_address(device: u32, address: Ipv4Addr) -> io::Result<()> {
    // Family, prefix, flags, scope; the number of the device.
    let mut body = vec![libc::AF_INET as u8, PREFIX, 0, 0];
    body.extend(device.to_ne_bytes());
    for name in [LOCAL, ADDRESS] {
        body.extend(attribute(name, address.octets()));
    }
    request(NEW_ADDRESS, CREATE, &body)
}

/// What leaves from the address leaves on the device: `ip route add default dev DEVICE table TABLE`, then
/// `ip rule add from ADDRESS table TABLE`.
pub(crate) fn route_from(address: Ipv4Addr, device: u32, table: u32) -> io::Result<()> {
    // Family, length of the destination and of the source, type of service, table (in an attribute),
    // protocol, scope, type, flags.
    let family = libc::AF_INET as u8;
    let mut route = vec![family, 0, 0, 0, 0];
    route.extend([libc::RTPROT_BOOT, libc::RT_SCOPE_LINK, libc::RTN_UNICAST, 0, 0, 0, 0]);
    route.extend(attribute(OUTPUT, device.to_ne_bytes()));
    route.extend(attribute(ROUTE_TABLE, table.to_ne_bytes()));
    request(NEW_ROUTE, CREATE, &route)?;
    // Family, length of the destination and of the source, type of service, table (in an attribute), two
    // bytes without a meaning, what to do, flags.
    let mut rule = vec![family, 0, 32, 0, 0, 0, 0, TO_TABLE, 0, 0, 0, 0];
    rule.extend(attribute(SOURCE, address.octets()));
    rule.extend(attribute(RULE_TABLE, table.to_ne_bytes()));
    request(NEW_RULE, CREATE, &rule)
}

fn set(device: u32, attributes: &[u8]) -> io::Result<()> {
    // Family and type of the device stay open, then its number, the flags, and which to change.
    let mut body = vec![0; 4];
    body.extend(device.to_ne_bytes());
    body.extend(UP.to_ne_bytes());
    body.extend(UP.to_ne_bytes());
    body.extend(attributes);
    request(NEW_LINK, 0, &body)
}

/// Its length, its name, its value.
fn attribute(name: u16, value: [u8; 4]) -> [u8; 8] {
    let mut attribute = [0; 8];
    attribute[..2].copy_from_slice(&8_u16.to_ne_bytes());
    attribute[2..4].copy_from_slice(&name.to_ne_bytes());
    attribute[4..].copy_from_slice(&value);
    attribute
}

fn request(kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
    let len = u32::try_from(HEADER + body.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // The length of all, type, flags; sequence and sender do not matter.
    let mut message = len.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend((REQUEST_AND_ACK | flags).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);

    let protocol = Protocol::from(libc::NETLINK_ROUTE);
    let mut netlink = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(protocol))?;
    // A socket without a peer writes to the kernel.
    netlink.write_all(&message)?;
    let mut answer = [0; 256];
    let len = netlink.read(&mut answer)?;
    // Behind the answer's header stands an error, negative, or 0.
    let code = answer.get(16..20).filter(|_| len >= 20).and_then(|code| code.try_into().ok());
    match code.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.wrapping_neg())),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}
