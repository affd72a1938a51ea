//! Applications: their actions on streams, and their guarantees.

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::io::{AsyncWrite, ReadBuf};

use super::network::{CLIENT_SIDE, SERVER_SIDE};
use super::third_party::Power;
use super::world::World;
use crate::fuzz::Choices;
use crate::stream::KcpStream;

/// Most connections of an endpoint.
pub(super) const STREAMS: usize = 8;
/// How long after a client connected a recorded datagram and its retransmissions are known.
const KNOWN: Duration = Duration::from_secs(60);

/// One end of a stream, with its bytes written and read.
pub(super) struct End {
    stream: KcpStream,
    /// Distinguishes the streams of one conversation id.
    serial: u32,
    written: u64,
    read: u64,
    closed: bool,
}

/// Bytes ever written to a stream.
pub(super) struct Written {
    serial: u32,
    bytes: u64,
    closed: bool,
    since: Instant,
}

impl World {
    pub(super) fn adopt(&mut self, side: usize, stream: KcpStream) {
        let conv = stream.conv();
        self.accepted += 1;
        // An earlier stream of this id is dropped.
        self.leave(side, conv, 2);
        let end = End { stream, serial: self.accepted, written: 0, read: 0, closed: false };
        let written = Written { serial: end.serial, bytes: 0, closed: false, since: self.now };
        // A client that changes its address may have several at the server.
        self.written[side].entry(conv).or_default().push(written);
        self.ends[side].insert(conv, end);
    }

    pub(super) fn application(&mut self, choices: &mut Choices<'_>) {
        self.accept();
        let side = usize::from(choices.byte() & 1);
        let mut convs: Vec<u32> = self.ends[side].keys().copied().collect();
        convs.sort_unstable();
        if convs.is_empty() {
            return;
        }
        let conv = choices.pick(&convs);
        let Some(end) = self.ends[side].get_mut(&conv) else { return };
        self.laws.check_stats(&end.stream.stats());
        let mut cx = Context::from_waker(Waker::noop());
        match choices.byte() % 12 {
            0..=3 => {
                let len = usize::from(choices.byte()) * 20 + 1;
                let data: Vec<u8> = (0..len as u64).map(|i| pattern(end.written + i)).collect();
                if let Ok(taken) = end.stream.try_write(&data) {
                    end.written += taken as u64;
                }
            }
            4..=6 => self.read(side, conv),
            7 => {
                let stream = std::pin::Pin::new(&mut end.stream);
                drop(stream.poll_shutdown(&mut cx));
                end.closed = true;
            }
            8 => drop(end.stream.datagrams().send(b"beside")),
            9 => while end.stream.datagrams().try_recv().is_ok() {},
            10 => self.leave(side, conv, choices.byte()),
            _ => match choices.byte() & 7 {
                0 if side == SERVER_SIDE => self.listener = None,
                1 if side == CLIENT_SIDE => self.endpoint = None,
                _ => self.turn(side),
            },
        }
        self.note(side, conv);
    }

    /// Records the bytes that this end has written, for checks of the reader.
    fn note(&mut self, side: usize, conv: u32) {
        if let Some(end) = self.ends[side].get(&conv)
            && let Some(all) = self.written[side].get_mut(&conv)
            && let Some(written) = all.iter_mut().find(|written| written.serial == end.serial)
        {
            (written.bytes, written.closed) = (end.written, end.closed);
        }
    }

    fn leave(&mut self, side: usize, conv: u32, how: u8) {
        let Some(end) = self.ends[side].get_mut(&conv) else { return };
        end.closed |= how & 3 != 0;
        self.note(side, conv);
        let Some(end) = self.ends[side].remove(&conv) else { return };
        match how & 3 {
            0 => end.stream.abort(),
            1 => drop(end.stream.into_split()),
            _ => drop(end.stream),
        }
    }

    fn accept(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut accepted = Vec::new();
        if let Some(listener) = &self.listener {
            while let Poll::Ready(Ok((stream, _))) = listener.poll_accept(&mut cx) {
                accepted.push(stream);
            }
            assert!(listener.stats().current_connections <= STREAMS as u64);
        }
        accepted.into_iter().for_each(|stream| self.adopt(SERVER_SIDE, stream));
    }

    fn read(&mut self, side: usize, conv: u32) {
        let Some(end) = self.ends[side].get_mut(&conv) else { return };
        let (peer, mut buffer) = (end.stream.peer_addr(), [0; 4_096]);
        loop {
            let mut buf = ReadBuf::new(&mut buffer);
            let mut cx = Context::from_waker(Waker::noop());
            let stream = std::pin::Pin::new(&mut end.stream);
            let polled = tokio::io::AsyncRead::poll_read(stream, &mut cx, &mut buf);
            let Poll::Ready(Ok(())) = polled else { return };
            let got = buf.filled();
            if let Ok(peer) = peer {
                self.laws.on_read(side, peer, conv);
            }
            if !self.honest {
                if got.is_empty() {
                    return;
                }
                continue;
            }
            // A connection that was not accepted has written nothing.
            let all = self.written[1 - side].get(&conv).map_or(&[][..], Vec::as_slice);
            if got.is_empty() {
                let ends = |written: &Written| written.closed && written.bytes == end.read;
                let unwritten = all.is_empty() && end.read == 0;
                assert!(unwritten || all.iter().any(ends), "a truncated stream ends with EOF");
                return;
            }
            let is_known = all.iter().any(|written| self.now < written.since + KNOWN);
            if self.power == Power::OnPath && side == SERVER_SIDE && is_known {
                let reader = *self.readers.entry(conv).or_insert(end.serial);
                assert_eq!(reader, end.serial, "bytes of {conv:#x} are delivered twice");
            }
            for byte in got {
                assert_eq!(*byte, pattern(end.read), "another byte than was written");
                end.read += 1;
            }
            let bytes = all.iter().map(|written| written.bytes).max();
            assert!(Some(end.read) <= bytes, "more bytes than were written");
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a byte is wanted")]
fn pattern(at: u64) -> u8 {
    (at ^ (at >> 8)) as u8
}
