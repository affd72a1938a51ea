//! Streams of smux inside a connection, with or without kcptun's compression (snappy).
//!
//! The bytes of each side are put in order and cut into frames. Memory is bounded for all connections together.

use std::collections::{BTreeMap, HashMap};
use std::io::{Cursor, Read as _};

use serde::Serialize;
use snap::read::FrameDecoder;

use crate::flow::{FIRST_NUMBER, Side};

/// Bytes of segments that wait for earlier ones, and of parts of chunks, of all connections.
const MAX_HELD: usize = 64 << 20;
/// A map has more than the bytes of a segment.
const HELD_OVERHEAD: usize = 128;
/// Streams that are remembered, of all connections.
const MAX_STREAMS: usize = 1 << 18;
/// A missing segment whose acknowledgement is this many segments ago is not in the capture.
const MAX_LATE: u64 = 1_024;
/// The first chunk of a snappy stream.
const STREAM_IDENTIFIER: &[u8] = b"\xff\x06\0\0sNaPpY";
const CHUNK_HEADER_LEN: usize = 4;
/// Bytes of a chunk; golang/snappy writes at most 76,494.
const MAX_CHUNK: usize = 1 << 17;
const HEADER_LEN: usize = 8;
/// Of UPD, with its payload: `u32 consumed, u32 window`.
const UPDATE_LEN: usize = 16;

/// The command of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Command {
    Syn,
    Fin,
    Psh,
    Nop,
    /// NOP with the id of a stream, by which kcpx-smux resets it.
    Reset,
    Upd,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Frame {
    pub(crate) version: u8,
    pub(crate) command: Command,
    pub(crate) stream: u32,
    pub(crate) len: u16,
    /// Of UPD: bytes that the application has read, and the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) consumed: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) window: Option<u32>,
}

impl Frame {
    /// From a header, and the payload of UPD.
    fn parse(bytes: &[u8; UPDATE_LEN]) -> Option<Self> {
        let [version, command, len0, len1, id0, id1, id2, id3, update @ ..] = *bytes;
        let (len, stream) =
            (u16::from_le_bytes([len0, len1]), u32::from_le_bytes([id0, id1, id2, id3]));
        let [consumed0, consumed1, consumed2, consumed3, window @ ..] = update;
        let (command, has_len) = match command {
            0 => (Command::Syn, len == 0),
            1 => (Command::Fin, len == 0),
            2 => (Command::Psh, true),
            3 if stream == 0 => (Command::Nop, len == 0),
            3 => (Command::Reset, len == 0),
            4 => (Command::Upd, version == 2 && usize::from(len) == UPDATE_LEN - HEADER_LEN),
            _ => return None,
        };
        if !(1..=2).contains(&version) || !has_len {
            return None;
        }
        let is_update = command == Command::Upd;
        let consumed = u32::from_le_bytes([consumed0, consumed1, consumed2, consumed3]);
        let window = u32::from_le_bytes(window);
        Some(Self {
            version,
            command,
            stream,
            len,
            consumed: is_update.then_some(consumed),
            window: is_update.then_some(window),
        })
    }
}

/// A stream of smux.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Stream {
    pub(crate) id: u32,
    pub(crate) opened_by: Side,
    pub(crate) opened_ns: u64,
    pub(crate) last_ns: u64,
    /// Payload from A, and from B.
    pub(crate) bytes: [u64; 2],
    /// Who sent the first FIN or reset.
    pub(crate) closed_by: Option<Side>,
    /// FIN of A, and of B.
    pub(crate) fins: [bool; 2],
    pub(crate) was_reset: bool,
}

/// What smux did on a connection.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Smux {
    pub(crate) version: u8,
    pub(crate) is_compressed: bool,
    /// Streams, of which the first ones are in `streams`.
    pub(crate) opened: u64,
    /// Payload from A, and from B.
    pub(crate) bytes: [u64; 2],
    pub(crate) keepalives: [u64; 2],
    /// The rest of a side is not in the capture, or damaged.
    pub(crate) is_incomplete: bool,
    pub(crate) streams: Vec<Stream>,
    #[serde(skip)]
    by_id: HashMap<u32, usize>,
}

impl Smux {
    fn new(version: u8, is_compressed: bool) -> Self {
        Self {
            version,
            is_compressed,
            opened: 0,
            bytes: [0; 2],
            keepalives: [0; 2],
            is_incomplete: false,
            streams: Vec::new(),
            by_id: HashMap::new(),
        }
    }

    fn frame(&mut self, side: Side, at: u64, frame: &Frame, streams: &mut usize) {
        match frame.command {
            Command::Nop => self.keepalives[side] += 1,
            Command::Syn => return self.open(side, at, frame.stream, streams),
            Command::Psh => self.bytes[side] += u64::from(frame.len),
            Command::Fin | Command::Reset | Command::Upd => {}
        }
        let index = self.by_id.get(&frame.stream).copied();
        let Some(stream) = index.and_then(|index| self.streams.get_mut(index)) else { return };
        stream.last_ns = stream.last_ns.max(at);
        match frame.command {
            Command::Psh => stream.bytes[side] += u64::from(frame.len),
            Command::Fin => {
                stream.fins[side] = true;
                stream.closed_by.get_or_insert(side);
            }
            Command::Reset => {
                stream.was_reset = true;
                stream.closed_by.get_or_insert(side);
            }
            Command::Syn | Command::Nop | Command::Upd => {}
        }
    }

    fn open(&mut self, side: Side, at: u64, id: u32, streams: &mut usize) {
        self.opened += 1;
        if *streams >= MAX_STREAMS {
            // An id that is used again is another stream.
            self.by_id.remove(&id);
            return;
        }
        *streams += 1;
        self.by_id.insert(id, self.streams.len());
        self.streams.push(Stream {
            id,
            opened_by: side,
            opened_ns: at,
            last_ns: at,
            bytes: [0; 2],
            closed_by: None,
            fins: [false; 2],
            was_reset: false,
        });
    }
}

/// What all connections have together.
#[derive(Debug)]
pub(crate) struct Shared {
    held: usize,
    streams: usize,
    /// Chunks are decoded one by one, so that one decoder is enough. It has read a stream identifier.
    snappy: FrameDecoder<Cursor<Vec<u8>>>,
}

impl Default for Shared {
    fn default() -> Self {
        let mut snappy = FrameDecoder::new(Cursor::new(STREAM_IDENTIFIER.to_vec()));
        // It has no data, and is right.
        let _ = snappy.read(&mut [0]);
        Self { held: 0, streams: 0, snappy }
    }
}

impl Shared {
    /// The data of a chunk with its header; `None` if it is damaged.
    fn decode(&mut self, chunk: Vec<u8>) -> Option<Vec<u8>> {
        let mut data = Vec::new();
        *self.snappy.get_mut() = Cursor::new(chunk);
        self.snappy.read_to_end(&mut data).ok()?;
        Some(data)
    }
}

#[cfg(any(test, feature = "_testkit"))]
impl Shared {
    /// `held`: the sum of what the connections hold.
    pub(crate) fn check_invariants(&self, held: usize) {
        assert_eq!(self.held, held, "Invariant: what is held is counted");
        assert!(self.held <= MAX_HELD, "Invariant: it has a limit");
        assert!(self.streams <= MAX_STREAMS, "Invariant: streams have a limit");
    }
}

/// What the bytes of a side are.
#[derive(Clone, Debug, Default)]
enum Encoding {
    /// Until the first byte.
    #[default]
    Unknown,
    Plain,
    /// With the part of a chunk that has come.
    Snappy(Vec<u8>),
    /// No smux, damaged, or not in the capture: nothing more is read.
    Other,
}

/// The bytes of a side.
#[derive(Clone, Debug)]
struct Bytes {
    /// The number of the segment that comes next.
    next: u64,
    /// Segments behind it.
    early: BTreeMap<u64, Vec<u8>>,
    encoding: Encoding,
    /// The part of a header that has come.
    partial: [u8; UPDATE_LEN],
    partial_len: usize,
    /// Payload to come.
    left: usize,
}

impl Default for Bytes {
    fn default() -> Self {
        Self {
            next: FIRST_NUMBER,
            early: BTreeMap::new(),
            encoding: Encoding::Unknown,
            partial: [0; UPDATE_LEN],
            partial_len: 0,
            left: 0,
        }
    }
}

/// The next frame of some bytes, or none.
enum Next {
    Frame(Frame),
    NeedsMore,
    NoSmux,
}

impl Bytes {
    fn holds(&self) -> usize {
        let part = if let Encoding::Snappy(part) = &self.encoding { part.len() } else { 0 };
        let early = self.early.values().map(|payload| payload.len() + HELD_OVERHEAD);
        part + early.sum::<usize>()
    }

    /// Takes bytes until a header is whole.
    fn next_frame(&mut self, bytes: &mut &[u8]) -> Next {
        loop {
            let payload = self.left.min(bytes.len());
            (self.left, *bytes) = (self.left - payload, bytes.get(payload..).unwrap_or_default());
            let Some((&byte, rest)) = bytes.split_first() else { return Next::NeedsMore };
            self.partial[self.partial_len] = byte;
            (self.partial_len, *bytes) = (self.partial_len + 1, rest);
            let whole = if self.partial[1] == 4 { UPDATE_LEN } else { HEADER_LEN };
            if self.partial_len < whole {
                continue;
            }
            self.partial_len = 0;
            let Some(frame) = Frame::parse(&self.partial) else { return Next::NoSmux };
            if frame.command == Command::Psh {
                self.left = usize::from(frame.len);
            }
            return Next::Frame(frame);
        }
    }
}

/// What is inside a connection.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Inside {
    #[serde(skip)]
    sides: [Bytes; 2],
    pub(crate) smux: Option<Smux>,
}

/// A segment with data.
pub(crate) struct Segment<'a> {
    pub(crate) side: Side,
    pub(crate) at: u64,
    pub(crate) number: u64,
    /// The lowest number that is not acknowledged.
    pub(crate) una: u64,
    pub(crate) payload: &'a [u8],
}

impl Inside {
    /// Takes a segment, and calls `each` with the frames that it completes.
    pub(crate) fn push(
        &mut self,
        segment: &Segment<'_>,
        shared: &mut Shared,
        mut each: impl FnMut(Frame),
    ) {
        let bytes = &mut self.sides[segment.side];
        if matches!(bytes.encoding, Encoding::Other) || segment.number < bytes.next {
            return;
        }
        if segment.number > bytes.next {
            let len = segment.payload.len() + HELD_OVERHEAD;
            if segment.una > bytes.next + MAX_LATE || shared.held + len > MAX_HELD {
                return self.give_up(segment.side, shared);
            }
            bytes.early.entry(segment.number).or_insert_with(|| {
                shared.held += len;
                segment.payload.to_vec()
            });
            return;
        }
        let mut next = Some(self.ordered(segment, segment.payload, shared, &mut each));
        while next == Some(true) {
            let bytes = &mut self.sides[segment.side];
            bytes.next += 1;
            next = bytes.early.remove(&bytes.next).map(|payload| {
                shared.held -= payload.len() + HELD_OVERHEAD;
                self.ordered(segment, &payload, shared, &mut each)
            });
        }
        if next == Some(false) {
            self.give_up(segment.side, shared);
        }
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn holds(&self) -> usize {
        self.sides.iter().map(Bytes::holds).sum()
    }

    /// The capture has ended: segments that still wait have a gap before them.
    pub(crate) fn finish(&mut self) {
        let has_gap = self.sides.iter().any(|bytes| !bytes.early.is_empty());
        if let Some(smux) = &mut self.smux {
            smux.is_incomplete |= has_gap;
        }
    }

    fn give_up(&mut self, side: Side, shared: &mut Shared) {
        let bytes = &mut self.sides[side];
        shared.held -= bytes.holds();
        bytes.early = BTreeMap::new();
        bytes.encoding = Encoding::Other;
        if let Some(smux) = &mut self.smux {
            smux.is_incomplete = true;
        }
    }

    /// Takes the bytes that come next. False if they are no smux.
    fn ordered(
        &mut self,
        segment: &Segment<'_>,
        payload: &[u8],
        shared: &mut Shared,
        each: &mut impl FnMut(Frame),
    ) -> bool {
        let bytes = &mut self.sides[segment.side];
        if let (Encoding::Unknown, Some(first)) = (&bytes.encoding, payload.first()) {
            bytes.encoding = match STREAM_IDENTIFIER.first() == Some(first) {
                true => Encoding::Snappy(Vec::new()),
                false => Encoding::Plain,
            };
        }
        let Encoding::Snappy(part) = &mut bytes.encoding else {
            return self.frames(segment, payload, shared, each);
        };
        // The encoding stays while its part is read.
        let mut part = std::mem::take(part);
        shared.held -= part.len();
        part.extend_from_slice(payload);
        let mut read = 0;
        while let Some(len) = chunk_len(&part[read..]) {
            if len > MAX_CHUNK {
                return false;
            }
            let Some(chunk) = part.get(read..read + len) else { break };
            let Some(data) = shared.decode(chunk.to_vec()) else { return false };
            if !self.frames(segment, &data, shared, each) {
                return false;
            }
            read += len;
        }
        part.drain(..read);
        if shared.held + part.len() > MAX_HELD {
            return false;
        }
        shared.held += part.len();
        self.sides[segment.side].encoding = Encoding::Snappy(part);
        true
    }

    fn frames(
        &mut self,
        segment: &Segment<'_>,
        mut data: &[u8],
        shared: &mut Shared,
        each: &mut impl FnMut(Frame),
    ) -> bool {
        let side = segment.side;
        loop {
            let frame = match self.sides[side].next_frame(&mut data) {
                Next::Frame(frame) => frame,
                Next::NeedsMore => return true,
                Next::NoSmux => return false,
            };
            let smux = match &mut self.smux {
                Some(smux) if smux.version == frame.version => smux,
                // A session begins with a stream or a keepalive.
                None if [Command::Syn, Command::Nop].contains(&frame.command) => {
                    let is_compressed = matches!(self.sides[side].encoding, Encoding::Snappy(_));
                    self.smux.insert(Smux::new(frame.version, is_compressed))
                }
                _ => return false,
            };
            smux.frame(side, segment.at, &frame, &mut shared.streams);
            each(frame);
        }
    }
}

/// Length of the chunk that begins some bytes, with its header.
fn chunk_len(bytes: &[u8]) -> Option<usize> {
    let &[_, len0, len1, len2] = bytes.first_chunk::<CHUNK_HEADER_LEN>()?;
    Some(CHUNK_HEADER_LEN + u32::from_le_bytes([len0, len1, len2, 0]) as usize)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

    use super::*;

    const SYN: [u8; HEADER_LEN] = [1, 0, 0, 0, 3, 0, 0, 0];

    fn push(
        inside: &mut Inside,
        shared: &mut Shared,
        number: u64,
        una: u64,
        payload: &[u8],
    ) -> usize {
        let mut frames = 0;
        let number = FIRST_NUMBER + number;
        let segment = Segment { side: 0, at: 0, number, una: FIRST_NUMBER + una, payload };
        inside.push(&segment, shared, |_| frames += 1);
        frames
    }

    #[test]
    fn segments_behind_a_gap_wait_within_the_limit_of_all_connections() {
        let (mut shared, payload) = (Shared::default(), vec![7; 60_000]);
        let mut connections = vec![Inside::default(); 3];
        for number in 1..1_000 {
            for inside in &mut connections {
                push(inside, &mut shared, number, 0, &payload);
            }
        }
        assert!(
            connections.iter().any(|inside| matches!(inside.sides[0].encoding, Encoding::Other))
        );
        shared.check_invariants(connections.iter().map(Inside::holds).sum());
    }

    #[test]
    fn a_gap_that_was_acknowledged_long_ago_is_not_waited_for() {
        let (mut inside, mut shared) = (Inside::default(), Shared::default());
        assert_eq!(push(&mut inside, &mut shared, 1, 0, &SYN), 0);
        assert_eq!(push(&mut inside, &mut shared, 2, MAX_LATE, &SYN), 0);
        assert_eq!(push(&mut inside, &mut shared, 0, MAX_LATE, &SYN), 3);
        assert_eq!(push(&mut inside, &mut shared, 4, MAX_LATE + 4, &SYN), 0);
        assert!(inside.smux.unwrap().is_incomplete);
        assert_eq!(shared.held, 0);
    }

    #[test]
    fn a_header_in_pieces_is_one_frame() {
        let (mut inside, mut shared) = (Inside::default(), Shared::default());
        let frames: usize = (0..)
            .zip(SYN)
            .map(|(number, byte)| push(&mut inside, &mut shared, number, 0, &[byte]))
            .sum();
        assert_eq!((frames, inside.smux.unwrap().opened), (1, 1));
    }
}
