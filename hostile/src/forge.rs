//! Datagrams of an attacker: forged segments, FEC packets and garbage.

use kcpx::proto::segment::{CONTROL_CAPABLE, Command, ControlType, Header};
use kcpx::proto::seq::{Sn, Ts};

use crate::rng::Rng;

/// Flag of a data packet of FEC (kcp-go `typeData`).
pub(crate) const FEC_DATA: u16 = 0xF1;
/// Flag of a parity packet of FEC (kcp-go `typeParity`).
pub(crate) const FEC_PARITY: u16 = 0xF2;
/// Flag of an out-of-band packet (kcp-go `typeOOB`).
const OUT_OF_BAND: u16 = 0xF3;

/// How far behind the next number a ping is (docs/wire.md, "Ping").
const PING_DISTANCE: u32 = 1 << 30;

/// A header with `una` 0 and a window of 128.
pub(crate) fn header(command: Command, conv: u32, sn: u32, ts: u32) -> Header {
    Header { conv, command, frg: 0, wnd: 128, ts: Ts(ts), sn: Sn(sn), una: Sn(0), len: 0 }
}

/// One segment in a datagram.
pub(crate) fn segment(header: Header, payload: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::with_capacity(64 + payload.len());
    Header { len: payload.len() as u32, ..header }.emit(&mut datagram);
    datagram.extend_from_slice(payload);
    datagram
}

/// An initial segment with data: PUSH of number 0.
pub(crate) fn initial(conv: u32, payload: &[u8]) -> Vec<u8> {
    segment(header(Command::Push, conv, 0, 0), payload)
}

/// An initial segment without data: WASK with the name of a connection attempt.
pub(crate) fn initial_without_data(conv: u32, attempt: u32) -> Vec<u8> {
    let header = header(Command::WindowProbe, conv, u32::MAX, attempt | 1);
    segment(Header { frg: CONTROL_CAPABLE, ..header }, &[])
}

/// A ping with a cookie of the forger's.
pub(crate) fn ping(conv: u32, cookie: u32) -> Vec<u8> {
    let header = header(Command::Push, conv, 0_u32.wrapping_sub(PING_DISTANCE), cookie);
    segment(Header { frg: CONTROL_CAPABLE, ..header }, &[])
}

/// An ACK of a segment that the forger only guesses.
pub(crate) fn ack(conv: u32, sn: u32, ts: u32) -> Vec<u8> {
    segment(header(Command::Ack, conv, sn, ts), &[])
}

/// A FIN or RST with number and timestamp of the forger's.
pub(crate) fn control(conv: u32, kind: ControlType, sn: u32, ts: u32) -> Vec<u8> {
    segment(Header { frg: kind as u8, ..header(Command::Control, conv, sn, ts) }, &[])
}

/// A FEC packet with a random body.
pub(crate) fn fec_packet(flag: u16, seqid: u32, body: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(8 + body.len());
    packet.extend_from_slice(&seqid.to_le_bytes());
    packet.extend_from_slice(&flag.to_le_bytes());
    packet.extend_from_slice(&(body.len() as u16 + 2).to_le_bytes());
    packet.extend_from_slice(body);
    packet
}

/// An out-of-band packet.
pub(crate) fn out_of_band(conv: u32, payload: &[u8]) -> Vec<u8> {
    let mut body = conv.to_le_bytes().to_vec();
    body.extend_from_slice(payload);
    fec_packet(OUT_OF_BAND, u32::MAX, &body)
}

/// Random bytes of a random length, half of them with the header of a segment in front.
pub(crate) fn garbage(rng: &mut Rng) -> Vec<u8> {
    let len = rng.below(600);
    let mut bytes = rng.bytes(len);
    if rng.below(2) == 0 && len > 24 {
        bytes[4] = 81 + (bytes[4] % 6);
        if rng.below(2) == 0 {
            let rest = (len - 24) as u32;
            bytes[20..24].copy_from_slice(&rest.to_le_bytes());
        }
    }
    bytes
}
