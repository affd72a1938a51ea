//! Frames written and read by hand, for tests that are one side of the wire.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

pub const SYN: u8 = 0;
pub const FIN: u8 = 1;
pub const PSH: u8 = 2;
pub const NOP: u8 = 3;
pub const UPD: u8 = 4;

#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    pub version: u8,
    pub cmd: u8,
    pub id: u32,
    pub payload: Vec<u8>,
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = ["SYN", "FIN", "PSH", "NOP", "UPD"];
        let name = names.get(usize::from(self.cmd)).unwrap_or(&"?");
        write!(f, "v{} {name} {} {} bytes", self.version, self.id, self.payload.len())?;
        if self.cmd == UPD { write!(f, " {:?}", self.update()) } else { Ok(()) }
    }
}

impl Frame {
    pub fn new(version: u8, cmd: u8, id: u32, payload: &[u8]) -> Self {
        Self { version, cmd, id, payload: payload.to_vec() }
    }

    /// `consumed` and `window` of an UPD.
    pub fn update(&self) -> (u32, u32) {
        let field = |at: usize| u32::from_le_bytes(self.payload[at..at + 4].try_into().unwrap());
        (field(0), field(4))
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.version, self.cmd];
        bytes.extend_from_slice(&(self.payload.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&self.id.to_le_bytes());
        bytes.extend_from_slice(&self.payload);
        bytes
    }
}

/// All frames of `bytes`, which end with a whole frame.
pub fn parse(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let len = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
        let id = u32::from_le_bytes(bytes[4..8].try_into().unwrap());
        frames.push(Frame::new(bytes[0], bytes[1], id, &bytes[8..8 + len]));
        bytes = &bytes[8 + len..];
    }
    frames
}

pub fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

/// One side of the wire in a test with a paused clock: waiting lets the other side do all it can.
pub struct Peer {
    pub io: DuplexStream,
    pub version: u8,
}

impl Peer {
    pub async fn send(&mut self, cmd: u8, id: u32, payload: &[u8]) {
        let bytes = Frame::new(self.version, cmd, id, payload).encode();
        self.io.write_all(&bytes).await.unwrap();
    }

    pub async fn send_update(&mut self, id: u32, consumed: u32, window: u32) {
        let payload = [consumed.to_le_bytes(), window.to_le_bytes()].concat();
        self.send(UPD, id, &payload).await;
    }

    /// The bytes received, and whether the carrier has ended.
    pub async fn read_all(&mut self) -> (Vec<u8>, bool) {
        let mut bytes = Vec::new();
        let wait = Duration::from_millis(1);
        loop {
            match tokio::time::timeout(wait, self.io.read_buf(&mut bytes)).await {
                Ok(Ok(0)) => return (bytes, true),
                Ok(read) => drop(read.unwrap()),
                Err(_) => return (bytes, false),
            }
        }
    }

    /// The frames received.
    pub async fn frames(&mut self) -> Vec<Frame> {
        parse(&self.read_all().await.0)
    }

    /// The frames received, without window updates: their number depends on the reader.
    pub async fn frames_without_updates(&mut self) -> Vec<Frame> {
        let mut frames = self.frames().await;
        frames.retain(|frame| frame.cmd != UPD);
        frames
    }
}
