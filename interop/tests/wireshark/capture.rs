//! A capture file: pcap with IPv4 packets and no link layer.

use std::time::Duration;

/// LINKTYPE_RAW of the pcap format: the packet begins with the IP header.
const LINK_TYPE: u32 = 101;
const IP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum From {
    Client,
    Server,
}

impl From {
    /// Of a vector.
    pub(crate) fn named(name: &str) -> Self {
        match name {
            "client" => Self::Client,
            "server" => Self::Server,
            _ => panic!("{name} is no side"),
        }
    }

    /// The last byte of its IPv4 address.
    fn host(self) -> u8 {
        match self {
            Self::Client => 2,
            Self::Server => 1,
        }
    }
}

/// A UDP datagram.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) at: Duration,
    pub(crate) from: From,
    pub(crate) payload: Vec<u8>,
}

/// Datagrams between a client, 10.0.0.2, and a server, 10.0.0.1.
#[derive(Clone, Debug)]
pub(crate) struct Capture {
    pub(crate) datagrams: Vec<Datagram>,
    /// Of client and server.
    pub(crate) ports: [u16; 2],
    /// Bytes of a packet that the file has at most.
    pub(crate) snap_len: usize,
}

impl Default for Capture {
    fn default() -> Self {
        // Wireshark has another protocol on port 4000, which the examples use.
        Self { datagrams: Vec::new(), ports: [50_000, 4_000], snap_len: 65_535 }
    }
}

impl Capture {
    /// Datagrams of the client, a millisecond apart.
    pub(crate) fn of(payloads: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut capture = Self::default();
        for payload in payloads {
            capture.push(From::Client, payload);
        }
        capture
    }

    /// Adds a datagram, a millisecond after the one before.
    pub(crate) fn push(&mut self, from: From, payload: Vec<u8>) {
        let at = self.datagrams.last().map_or(Duration::ZERO, |last| last.at);
        self.datagrams.push(Datagram { at: at + Duration::from_millis(1), from, payload });
    }

    /// The file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut file = Vec::new();
        for number in [0xA1B2_C3D4, 2 | 4 << 16, 0, 0, 65_535, LINK_TYPE] {
            file.extend(u32::to_le_bytes(number));
        }
        for datagram in &self.datagrams {
            let packet = self.packet(datagram);
            let captured = packet.len().min(self.snap_len);
            let seconds = u32::try_from(datagram.at.as_secs()).unwrap();
            let lengths = [captured, packet.len()].map(|len| u32::try_from(len).unwrap());
            for number in [seconds, datagram.at.subsec_micros(), lengths[0], lengths[1]] {
                file.extend(number.to_le_bytes());
            }
            file.extend(&packet[..captured]);
        }
        file
    }

    fn packet(&self, datagram: &Datagram) -> Vec<u8> {
        let udp_len = UDP_HEADER + datagram.payload.len();
        let length = |len: usize| u16::try_from(len).unwrap().to_be_bytes();
        let (mut source, mut target) = (From::Client, From::Server);
        let [mut source_port, mut target_port] = self.ports;
        if datagram.from == From::Server {
            (source, target) = (target, source);
            (source_port, target_port) = (target_port, source_port);
        }
        // Version and header length; no flags, protocol UDP, no checksum.
        let mut packet = vec![0x45, 0];
        packet.extend(length(IP_HEADER + udp_len));
        packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
        packet.extend([10, 0, 0, source.host(), 10, 0, 0, target.host()]);
        packet.extend(source_port.to_be_bytes());
        packet.extend(target_port.to_be_bytes());
        packet.extend(length(udp_len));
        packet.extend([0, 0]);
        packet.extend(&datagram.payload);
        packet
    }
}
