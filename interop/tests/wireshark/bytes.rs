//! Bytes of docs/wire.md, written without the crate.

pub(crate) const CONV: u32 = 0x1122_3344;
pub(crate) const PUSH: u8 = 81;
pub(crate) const ACK: u8 = 82;
pub(crate) const WASK: u8 = 83;
pub(crate) const WINS: u8 = 84;
pub(crate) const CONTROL: u8 = 85;
pub(crate) const REPAIR: u8 = 86;
/// `frg` of a sender that supports CONTROL.
pub(crate) const CAPABLE: u8 = 0xA5;

/// The fields of a segment that differ between the tests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) conv: u32,
    pub(crate) cmd: u8,
    pub(crate) frg: u8,
    pub(crate) wnd: u16,
    pub(crate) ts: u32,
    pub(crate) sn: u32,
    pub(crate) una: u32,
    pub(crate) payload: &'static [u8],
}

impl Default for Segment {
    fn default() -> Self {
        Self { conv: CONV, cmd: PUSH, frg: 0, wnd: 128, ts: 7, sn: 0, una: 0, payload: b"" }
    }
}

impl Segment {
    pub(crate) fn bytes(self) -> Vec<u8> {
        segment(
            self.conv,
            [self.cmd, self.frg],
            self.wnd,
            [self.ts, self.sn, self.una],
            self.payload,
        )
    }
}

/// A segment: `cmd` and `frg`; `ts`, `sn` and `una`.
pub(crate) fn segment(
    conv: u32,
    kind: [u8; 2],
    wnd: u16,
    numbers: [u32; 3],
    payload: &[u8],
) -> Vec<u8> {
    let mut bytes = conv.to_le_bytes().to_vec();
    bytes.extend(kind);
    bytes.extend(wnd.to_le_bytes());
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    bytes.extend(u32::try_from(payload.len()).unwrap().to_le_bytes());
    bytes.extend(payload);
    bytes
}

/// A FEC data packet.
pub(crate) fn fec_data(seqid: u32, datagram: &[u8]) -> Vec<u8> {
    let mut bytes = seqid.to_le_bytes().to_vec();
    bytes.extend([0xF1, 0]);
    bytes.extend(u16::try_from(datagram.len() + 2).unwrap().to_le_bytes());
    bytes.extend(datagram);
    bytes
}

/// A parity packet with made-up parity.
pub(crate) fn fec_parity(seqid: u32, len: usize) -> Vec<u8> {
    let mut bytes = seqid.to_le_bytes().to_vec();
    bytes.extend([0xF2, 0]);
    bytes.resize(6 + len, 0x5A);
    bytes
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(digit).collect()
}

/// Pseudo-random bytes (SplitMix64).
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(limit).unwrap()).unwrap()
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.next() as u8).take(len).collect()
    }
}
