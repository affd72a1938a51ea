//! Body of the fuzz target `smux_session`: arbitrary peer and application, and a carrier that takes
//! any number of bytes at a time. A plain function of bytes, so that ordinary tests run it too.

#![allow(
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "a panic is how a fuzz target reports"
)]

use std::collections::{HashMap, HashSet};
use std::io::IoSlice;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::core::batch::{Batch, MAX_SLICES};
use crate::core::frame::{Event, Parser};
use crate::core::session::Core;
use crate::session::{FIRST_CLIENT_ID, FIRST_SERVER_ID};
use crate::{Config, Session, Stream, Version};

/// Small limits, so that all are reached.
fn config(choice: u8) -> Config {
    let version = [Version::V1, Version::V2, Version::Any][usize::from(choice % 3)];
    let config = Config::new().version(version).max_receive_buffer(100_000).max_streams(8);
    let config = config.accept_backlog(4).send_buffer(3_000).max_frame_size(1_000);
    let delay = Duration::from_secs(u64::from(choice / 3 % 2));
    config.max_stream_buffer(if choice & 8 == 0 { 1_000 } else { 70_000 }).fin_delay(delay)
}

/// Bytes of an operation.
const OPERATION: usize = 5;
/// Operations between two checks of everything: a check takes longer than an operation.
const CHECK_EVERY: usize = 16;

/// Runs `data` as configuration, frames of the peer and actions of the application. Returns the number
/// of operations.
pub fn smux_session(data: &[u8]) -> usize {
    let Some((choice, operations)) = data.split_first() else { return 0 };
    let mut run = Run::new(*choice);
    let mut count = 0;
    for operation in operations.chunks(OPERATION) {
        count += 1;
        let mut bytes = [0; OPERATION];
        bytes[..operation.len()].copy_from_slice(operation);
        let [op, operands @ ..] = bytes;
        if !run.step(op, operands) {
            break;
        }
        if count % CHECK_EVERY == 0 {
            run.check();
        }
    }
    run.check();
    run.finish();
    count
}

struct Run {
    session: Session,
    core: Core,
    input: BytesMut,
    batch: Batch,
    streams: Vec<Stream>,
    now: Instant,
    /// The version of the peer's well-formed frames.
    version: u8,
    /// Payload received by stream id, over all streams of that id.
    received: HashMap<u32, u64>,
    incoming: Parser,
    outgoing: Parser,
    /// Ids for which this side has sent FIN.
    finished: HashSet<u32>,
    /// Ids of the peer's SYN frames.
    seen: HashSet<u32>,
    /// Ids that the peer has used twice, or that belong to this side: FIN of one stream may be sent
    /// after the SYN of the next.
    reused: HashSet<u32>,
}

impl Run {
    fn new(choice: u8) -> Self {
        let now = Instant::now();
        let config = config(choice);
        let is_client = choice & 64 != 0 && config.version != Version::Any;
        let first = if is_client { FIRST_CLIENT_ID } else { FIRST_SERVER_ID };
        let (session, core, _) = Session::parts(config, first, now);
        let version = session.version();
        Self {
            core,
            input: BytesMut::new(),
            batch: Batch::new(choice & 32 != 0),
            streams: Vec::new(),
            now,
            version: version.unwrap_or(1 + (choice >> 7)),
            received: HashMap::new(),
            incoming: Parser::new(version),
            outgoing: Parser::new(version),
            finished: HashSet::new(),
            seen: HashSet::new(),
            reused: HashSet::new(),
            session,
        }
    }

    /// Returns false once the session has ended.
    fn step(&mut self, op: u8, operands: [u8; 4]) -> bool {
        let [a, b, c, d] = operands;
        let id = u32::from(a % 12);
        let size = usize::from(u16::from_le_bytes([b, c]));
        match op % 16 {
            0..=6 => {
                let upd = if self.version == 1 { 3 } else { 4 };
                let cmd = [2, 2, 2, 0, 1, 3, upd][usize::from(op % 16)];
                let len = if cmd == 2 { size } else { [0, 8][usize::from(cmd == 4)] };
                let mut frame = vec![self.version, cmd];
                frame.extend_from_slice(&u16::try_from(len).unwrap().to_le_bytes());
                frame.extend_from_slice(&id.to_le_bytes());
                frame.resize(8 + len, d);
                if cmd == 4 {
                    frame[8..12]
                        .copy_from_slice(&(u32::from(b) * u32::from(op >> 4)).to_le_bytes());
                    let window = if d == 255 { u32::MAX } else { u32::from(c) << (d % 20) };
                    frame[12..16].copy_from_slice(&window.to_le_bytes());
                }
                return self.receive(&frame);
            }
            7 => return self.receive(&operands),
            8 => {
                let mut cx = Context::from_waker(Waker::noop());
                if let Poll::Ready(Ok(stream)) = self.session.poll_accept(&mut cx) {
                    self.streams.push(stream);
                }
            }
            9 if self.streams.len() < 20 => {
                let opened = pin!(self.session.open_stream());
                let polled = opened.poll(&mut Context::from_waker(Waker::noop()));
                if let Poll::Ready(Ok(stream)) = polled {
                    self.streams.push(stream);
                }
            }
            10 => {
                self.now += Duration::from_millis(size as u64);
                return self.core.on_timer(self.now).is_ok();
            }
            11..=13 => self.act(op, usize::from(a), size, d),
            _ => self.transmit(size),
        }
        true
    }

    /// Applies one action to one stream.
    fn act(&mut self, op: u8, index: usize, size: usize, how: u8) {
        if self.streams.is_empty() {
            return;
        }
        let index = index % self.streams.len();
        let stream = Pin::new(&mut self.streams[index]);
        let mut cx = Context::from_waker(Waker::noop());
        match (op % 16, how % 4) {
            (11, _) => {
                let mut buffer = vec![0; size];
                let _ = stream.poll_read(&mut cx, &mut ReadBuf::new(&mut buffer));
            }
            (12, _) => drop(stream.poll_write(&mut cx, &vec![7; size])),
            (_, 0) if size.is_multiple_of(2) => drop(stream.poll_flush(&mut cx)),
            (_, 0) => drop(stream.poll_shutdown(&mut cx)),
            (_, 1) => self.streams.swap_remove(index).abort(),
            (_, 2) => {
                let (read, write) = self.streams.swap_remove(index).into_split();
                drop(write);
                drop(read);
            }
            _ => drop(self.streams.swap_remove(index)),
        }
    }

    fn receive(&mut self, bytes: &[u8]) -> bool {
        self.core.exchange(Waker::noop(), self.now);
        if !self.core.may_read(self.now) {
            return true;
        }
        let mut copy = BytesMut::from(bytes);
        while let Ok(Some(event)) = self.incoming.next(&mut copy) {
            match event {
                Event::Payload { id, len } => {
                    *self.received.entry(id).or_default() += len as u64;
                    copy.advance(len);
                }
                Event::Syn(id) => {
                    self.finished.remove(&id);
                    if !self.seen.insert(id) || id % 2 == self.core.parity() {
                        self.reused.insert(id);
                    }
                }
                _ => {}
            }
        }
        self.core.prepare_input(&mut self.input);
        self.input.extend_from_slice(bytes);
        let result = self.core.receive(&mut self.input, self.now);
        drop(self.core.take_signals());
        if let Err(error) = result {
            self.core.fail(&error.into());
        }
        result.is_ok()
    }

    /// The carrier takes `len` bytes. Sent frames must be well-formed and obey the protocol.
    fn transmit(&mut self, len: usize) {
        self.core.exchange(Waker::noop(), self.now);
        if self.batch.is_empty() {
            if len.is_multiple_of(3) {
                self.core.on_flushed();
            }
            self.core.fill(&mut self.batch, self.now);
        }
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let set = self.batch.slices(&mut slices);
        let mut bytes = BytesMut::new();
        slices[..set].iter().for_each(|slice| bytes.extend_from_slice(slice));
        bytes.truncate(len);
        self.batch.advance(bytes.len());
        if self.batch.is_empty() {
            self.core.on_written(&mut self.batch);
        }
        while let Some(event) = self.outgoing.next(&mut bytes).unwrap() {
            match event {
                // The peer may have used this side's id before, and was refused.
                Event::Syn(id) => drop(self.finished.remove(&id)),
                Event::Fin(id) => drop(self.finished.insert(id)),
                Event::Reset(id) => {
                    let is_own = id % 2 == self.core.parity();
                    assert!(is_own || self.seen.contains(&id), "reset of no stream");
                }
                Event::Payload { id, len } => {
                    let finished = self.finished.contains(&id) && !self.reused.contains(&id);
                    assert!(!finished, "PSH behind FIN");
                    bytes.advance(len);
                }
                Event::Upd { id, consumed, .. } => {
                    let received = self.received.get(&id).copied().unwrap_or(0);
                    assert!(u64::from(consumed) <= received, "consumed more than was received");
                }
            }
        }
    }

    fn check(&self) {
        self.core.check_invariants();
        let handles: usize = self.streams.iter().map(Stream::unread).sum();
        let waiting: usize = {
            let streams = self.session.handle.mailbox.accept_queue().streams.clone();
            streams.iter().map(|stream: &Arc<_>| stream.lock().receive.queue.len()).sum()
        };
        let unread = self.session.handle.mailbox.tokens.unread();
        assert_eq!(unread, handles + waiting, "tokens are the unread bytes");
        assert!(unread < 100_000 + 65_536 + 8);
        assert!(self.batch.len() < 70_000);
    }

    /// Reads everything to its end, and checks that nothing remains.
    fn finish(mut self) {
        self.core.fail(&crate::Error::Closed);
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Ok(stream)) = self.session.poll_accept(&mut cx) {
            self.streams.push(stream);
        }
        for mut stream in self.streams.drain(..) {
            while stream.unread() > 0 {
                let mut buffer = [0; 4_096];
                let mut buffer = ReadBuf::new(&mut buffer);
                let read = Pin::new(&mut stream).poll_read(&mut cx, &mut buffer);
                assert!(matches!(read, Poll::Ready(Ok(()))));
            }
            assert!(Pin::new(&mut stream).poll_flush(&mut cx).is_ready(), "flush ends");
            assert!(Pin::new(&mut stream).poll_shutdown(&mut cx).is_ready(), "shutdown ends");
        }
        assert_eq!(self.session.handle.mailbox.tokens.unread(), 0);
        assert_eq!(self.core.num_streams(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inputs kept beside the target; the published package has none.
    #[test]
    fn smux_session_holds_invariants_for_inputs_that_failed() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/seeds/smux_session");
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            println!("{}", path.display());
            smux_session(&std::fs::read(path).unwrap());
        }
    }

    #[test]
    fn smux_session_holds_invariants_for_any_input() {
        for seed in 0..3_000_u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut input = Vec::new();
            for _ in 0..200 + seed % 3_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                input.push((state >> 40) as u8);
            }
            // Most runs without raw bytes, which soon end a session.
            if seed % 4 != 0 {
                input
                    .iter_mut()
                    .skip(1)
                    .step_by(5)
                    .filter(|op| **op % 16 == 7)
                    .for_each(|op| *op += 1);
            }
            if seed % 100 == 0 {
                println!("seeds from {seed}");
            }
            smux_session(&input);
        }
    }
}
