//! A smux client that behaves like kcptun 20210922: its KCP has no CONTROL segments, and a closed
//! stream ends with FIN and discards received bytes.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use kcpx::KcpStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// kcptun's `streambuf`.
const STREAM_BUFFER: u32 = 2 << 20;

const SYN: u8 = 0;
const FIN: u8 = 1;
const PSH: u8 = 2;
const UPD: u8 = 4;

pub struct StockClient {
    stream: KcpStream,
    version: u8,
    next_id: u32,
    /// Bytes of an incomplete frame.
    input: Vec<u8>,
    /// Streams that are read.
    reading: HashMap<u32, Reading>,
    /// Streams that the server has ended.
    ended: HashSet<u32>,
}

#[derive(Default)]
struct Reading {
    bytes: u32,
    /// Bytes since the last window update.
    news: u32,
    /// No more window is granted.
    is_closed: bool,
}

impl StockClient {
    pub async fn connect(server: SocketAddr, version: u8) -> Self {
        let config = super::common().config().unwrap().close_notify(false);
        let stream = KcpStream::connect_with(server, config).await.unwrap();
        let (input, reading, ended) = Default::default();
        Self { stream, version, next_id: 3, input, reading, ended }
    }

    async fn send(&mut self, command: u8, id: u32, payload: &[u8]) {
        let len = u16::try_from(payload.len()).unwrap();
        let mut frame = vec![self.version, command];
        frame.extend_from_slice(&len.to_le_bytes());
        frame.extend_from_slice(&id.to_le_bytes());
        frame.extend_from_slice(payload);
        self.stream.write_all(&frame).await.unwrap();
    }

    /// Opens a stream that is read, and writes `request` to it.
    pub async fn open(&mut self, request: &[u8]) -> u32 {
        let id = self.next_id;
        self.next_id += 2;
        self.reading.insert(id, Reading::default());
        self.send(SYN, id, b"").await;
        self.send(PSH, id, request).await;
        id
    }

    /// Ends the direction to the server. The server's bytes are still read.
    pub async fn half_close(&mut self, id: u32) {
        self.send(FIN, id, b"").await;
    }

    /// Stops reading the stream; nothing more is sent.
    pub fn discard(&mut self, id: u32) {
        self.reading.remove(&id);
    }

    /// Closes a stream as kcptun does.
    pub async fn close(&mut self, id: u32) {
        self.half_close(id).await;
        self.discard(id);
    }

    /// Closes a stream of smux 2 as kcptun does, and accepts bytes until its window is used up.
    pub async fn close_and_exhaust(&mut self, id: u32) {
        self.half_close(id).await;
        let reading = self.reading.get_mut(&id).unwrap();
        reading.is_closed = true;
        let allowed = reading.bytes - reading.news + STREAM_BUFFER;
        self.read(id, allowed).await;
        self.discard(id);
    }

    /// Processes received frames.
    pub async fn pump(&mut self) {
        let read = self.stream.read_buf(&mut self.input).await.unwrap();
        assert!(read > 0, "the session has ended");
        while let Some((&[_, command, low, high, a, b, c, d], body)) =
            self.input.split_first_chunk::<8>()
        {
            let (len, id) = (u16::from_le_bytes([low, high]), u32::from_le_bytes([a, b, c, d]));
            if body.len() < len.into() {
                break;
            }
            self.input.drain(..8 + usize::from(len));
            match command {
                FIN => drop(self.ended.insert(id)),
                PSH => self.on_payload(id, len.into()).await,
                _ => {}
            }
        }
    }

    async fn on_payload(&mut self, id: u32, len: u32) {
        let Some(reading) = self.reading.get_mut(&id) else { return };
        reading.bytes += len;
        reading.news += len;
        let is_first = reading.bytes == len;
        let is_due = is_first || reading.news >= STREAM_BUFFER / 2;
        if self.version == 2 && is_due && !reading.is_closed {
            reading.news = 0;
            let update = [reading.bytes, STREAM_BUFFER].map(u32::to_le_bytes).concat();
            self.send(UPD, id, &update).await;
        }
    }

    /// Reads until `bytes` of the stream have arrived.
    pub async fn read(&mut self, id: u32, bytes: u32) {
        while self.reading[&id].bytes < bytes {
            self.pump().await;
        }
    }

    /// Opens a stream, writes `request`, reads to the end, and closes it; returns the number of
    /// bytes.
    pub async fn fetch(&mut self, request: &[u8]) -> u32 {
        let id = self.open(request).await;
        while !self.ended.contains(&id) {
            self.pump().await;
        }
        let bytes = self.reading[&id].bytes;
        self.close(id).await;
        bytes
    }

    /// Processes received frames until `future` is ready.
    pub async fn pump_until<T>(&mut self, future: impl Future<Output = T>) -> T {
        let pumping = async {
            loop {
                self.pump().await;
            }
        };
        tokio::select! { biased; output = future => output, () = pumping => unreachable!() }
    }
}
