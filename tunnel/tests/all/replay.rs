//! Replays recorded sessions of kcptun 20210922, each side in turn, against this crate: the
//! application bytes must be equal, whatever the frames.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kcpx::{Algorithm, Config, KcpListener, KcpStream, Redundancy};
use kcpx_tunnel::settings::{Common, SmuxVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::common::*;

const NAMES: [&str; 5] = ["echo", "big", "two", "idle", "refused"];
/// Piece size of bytes beyond the recorded order of segments.
const REST: usize = 8;
const DRAIN: Duration = Duration::from_secs(1);

/// A recorded session.
struct Recording {
    name: String,
    compression: bool,
    version: u8,
    /// Sender and bytes of each segment, in order.
    segments: Vec<(Side, Vec<u8>)>,
    /// Segments whose order was recorded; the rest is cut into pieces here.
    ordered: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

/// The application bytes of one side on each stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Said(BTreeMap<u32, OnStream>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OnStream {
    syn: bool,
    data: Vec<u8>,
    fin: bool,
}

impl Said {
    /// Whether it contains everything in `other`.
    fn covers(&self, other: &Self) -> bool {
        other.0.iter().all(|(id, theirs)| {
            let ours = self.0.get(id);
            ours.is_some_and(|ours| {
                ours.syn >= theirs.syn
                    && ours.data.len() >= theirs.data.len()
                    && ours.fin >= theirs.fin
            })
        })
    }
}

/// Parses the bytes of one direction: Snappy chunks, if any, and smux frames.
#[derive(Default)]
struct Parser {
    raw: Vec<u8>,
    frames: Vec<u8>,
    said: Said,
    /// Bytes that the last window update of each stream acknowledges.
    consumed: BTreeMap<u32, usize>,
    count: usize,
    started: bool,
    compressed: bool,
    version: u8,
}

impl Parser {
    fn push(&mut self, bytes: &[u8]) {
        if !std::mem::replace(&mut self.started, true) {
            self.compressed = bytes.first() == Some(&0xff);
        }
        if self.compressed {
            self.raw.extend_from_slice(bytes);
            self.take_chunks();
        } else {
            self.frames.extend_from_slice(bytes);
        }
        self.take_frames();
    }

    fn take_chunks(&mut self) {
        while let Some((&[chunk_type, low, middle, high], body)) = self.raw.split_first_chunk::<4>()
        {
            let len = usize::from(low) | usize::from(middle) << 8 | usize::from(high) << 16;
            let Some(body) = body.get(..len) else { return };
            match chunk_type {
                0 => {
                    let data = snap::raw::Decoder::new().decompress_vec(&body[4..]).unwrap();
                    self.frames.extend(data);
                }
                1 => self.frames.extend_from_slice(&body[4..]),
                0xff => assert_eq!(body, b"sNaPpY"),
                other => panic!("chunk type {other}"),
            }
            self.raw.drain(..4 + len);
        }
    }

    fn take_frames(&mut self) {
        while let Some((&[version, command, low, high, a, b, c, d], body)) =
            self.frames.split_first_chunk::<8>()
        {
            let len = usize::from(u16::from_le_bytes([low, high]));
            let Some(body) = body.get(..len) else { return };
            let stream = || u32::from_le_bytes([a, b, c, d]);
            match command {
                0 => self.said.0.entry(stream()).or_default().syn = true,
                1 => self.said.0.entry(stream()).or_default().fin = true,
                2 => self.said.0.entry(stream()).or_default().data.extend_from_slice(body),
                3 => {}
                4 => {
                    let consumed = u32::from_le_bytes(body[..4].try_into().unwrap());
                    self.consumed.insert(stream(), usize::try_from(consumed).unwrap());
                }
                other => panic!("command {other}"),
            }
            self.version = version;
            self.count += 1;
            self.frames.drain(..8 + len);
        }
    }
}

fn recordings() -> Vec<Recording> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let hex = |text: &str| -> Vec<u8> {
        let pairs = text.as_bytes().chunks(2);
        pairs
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    };
    let mut recordings = Vec::new();
    for name in NAMES {
        for version in [1, 2] {
            for compression in [false, true] {
                let framing = if compression { "comp" } else { "nocomp" };
                let name = format!("kcptun-20210922-{name}-v{version}-{framing}");
                let text = std::fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
                let json: serde_json::Value = serde_json::from_str(&text).unwrap();
                let stream = |side| hex(json["streams"][side][0].as_str().unwrap());
                let (mut client, mut server) = (stream("client"), stream("server"));
                let mut segments = Vec::new();
                for segment in json["segments"].as_array().unwrap() {
                    let len = usize::try_from(segment[4].as_u64().unwrap()).unwrap();
                    let (side, bytes) = match segment[1].as_str().unwrap() {
                        "client" => (Side::Client, &mut client),
                        _ => (Side::Server, &mut server),
                    };
                    segments.push((side, bytes.drain(..len.min(bytes.len())).collect()));
                }
                let ordered = segments.len();
                // Large recordings have the order of their first segments only.
                segments.extend(client.chunks(REST).map(|part| (Side::Client, part.to_vec())));
                segments.extend(server.chunks(REST).map(|part| (Side::Server, part.to_vec())));
                recordings.push(Recording { name, compression, version, segments, ordered });
            }
        }
    }
    recordings
}

impl Recording {
    fn said(&self, side: Side) -> Said {
        let mut parser = Parser::default();
        for (from, bytes) in &self.segments {
            if *from == side {
                parser.push(bytes);
            }
        }
        parser.said
    }

    /// Whether the client's end of a stream precedes the server's.
    fn client_ends_first(&self, id: u32) -> bool {
        let (mut client, mut server) = (Parser::default(), Parser::default());
        for (from, bytes) in &self.segments {
            match from {
                Side::Client => client.push(bytes),
                Side::Server => server.push(bytes),
            }
            let ended = |parser: &Parser| parser.said.0.get(&id).is_some_and(|stream| stream.fin);
            if ended(&client) || ended(&server) {
                return ended(&client);
            }
        }
        false
    }

    /// Sends the segments of `side` over `stream`, each once the other side has sent everything
    /// that preceded it. Returns everything that the other side sent.
    async fn play(&self, side: Side, stream: KcpStream) -> Parser {
        let (mut reader, mut writer) = stream.into_split();
        let (heard, mut watch) = watch::channel(Said::default());
        let all = self.said(if side == Side::Client { Side::Server } else { Side::Client });
        let listening = tokio::spawn(async move {
            let mut parser = Parser::default();
            while !parser.said.covers(&all) {
                let chunk = reader.read_chunk().await.unwrap();
                assert!(!chunk.is_empty(), "the session ended, heard {:?}", parser.count);
                parser.push(&chunk);
                heard.send_replace(parser.said.clone());
            }
            (parser, reader)
        });
        let (mut own, mut other) = (Parser::default(), Parser::default());
        for (number, (from, bytes)) in self.segments.iter().enumerate() {
            if *from == side {
                // The rest of a chunk or frame waits for nothing: the order of crossing segments
                // was not recorded.
                let is_rest = !own.raw.is_empty() || !own.frames.is_empty();
                own.push(bytes);
                let may_leave = |said: &Said| {
                    let is_sent = |(id, consumed): (&u32, &usize)| {
                        said.0.get(id).is_some_and(|stream| stream.data.len() >= *consumed)
                    };
                    own.consumed.iter().all(is_sent)
                        && (is_rest || number >= self.ordered || said.covers(&other.said))
                };
                watch.wait_for(may_leave).await.unwrap();
                writer.write_all(bytes).await.unwrap();
                writer.flush().await.unwrap();
            } else {
                other.push(bytes);
            }
        }
        listening.await.unwrap().0
    }

    fn common(&self) -> Common {
        let mut common = common();
        (common.algorithm, common.redundancy) = (Algorithm::None, Redundancy::Off);
        common
    }
}

fn raw_config() -> Config {
    let cipher = kcpx::Cipher::from_name("none", &kcpx::Key::new([])).unwrap();
    Config::new().cipher(cipher).mtu(1_350).timing(kcpx::Timing::FAST3)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_kcptun_clients_are_served() {
    for recording in recordings() {
        let (client, server) = (recording.said(Side::Client), recording.said(Side::Server));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let serving = if recording.name.contains("refused") {
            drop(listener);
            None
        } else {
            Some(tokio::spawn(serve_target(
                listener,
                client.clone(),
                server.clone(),
                received.clone(),
            )))
        };
        let (running, addr) =
            start_server(server_settings(local(target), recording.common()), DRAIN).await;
        let stream = KcpStream::connect_with(addr, raw_config()).await.unwrap();
        let name = &recording.name;
        let heard = within(name, recording.play(Side::Client, stream)).await;
        let framing = (heard.compressed, heard.version);
        assert_eq!(framing, (recording.compression, recording.version), "{name}");
        if let Some(serving) = serving {
            within(name, serving).await.unwrap();
            for (id, stream) in &server.0 {
                assert!(heard.said.0[id].data == stream.data, "{name}: answer of stream {id}");
            }
            let mut expected: Vec<_> =
                client.0.values().map(|stream| stream.data.clone()).collect();
            expected.sort();
            let mut received = std::mem::take(&mut *received.lock().unwrap());
            received.sort();
            assert!(received == expected, "{name}: bytes at the target");
        }
        let bytes: usize = client.0.values().map(|stream| stream.data.len()).sum();
        println!(
            "{name}: {} streams, {bytes} bytes, {} frames of ours",
            client.0.len(),
            heard.count
        );
        drop(running);
    }
}

/// A connection for each recorded stream: the same answers, once the same requests have arrived.
async fn serve_target(
    listener: TcpListener,
    client: Said,
    server: Said,
    received: Arc<Mutex<Vec<Vec<u8>>>>,
) {
    let mut streams = JoinSet::new();
    for _ in 0..client.0.len() {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (client, server, received) = (client.clone(), server.clone(), received.clone());
        streams.spawn(async move {
            let mut request = Vec::new();
            // The first bytes identify the recorded stream.
            let (id, expected) = loop {
                let mut matching =
                    client.0.iter().filter(|(_, stream)| stream.data.starts_with(&request));
                let first = matching.next().expect("a recorded request");
                if matching.next().is_none() {
                    break (*first.0, first.1.data.clone());
                }
                assert!(stream.read_buf(&mut request).await.unwrap() > 0);
            };
            while request.len() < expected.len() {
                assert!(stream.read_buf(&mut request).await.unwrap() > 0);
            }
            let answer = server.0.get(&id).map(|stream| stream.data.clone()).unwrap_or_default();
            stream.write_all(&answer).await.unwrap();
            received.lock().unwrap().push(request);
            if expected.is_empty() {
                // Idle: the client's end follows.
                assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
            }
        });
    }
    while let Some(stream) = streams.join_next().await {
        stream.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_kcptun_servers_are_used() {
    for recording in recordings() {
        let recording = Arc::new(recording);
        let (client, server) = (recording.said(Side::Client), recording.said(Side::Server));
        let listener = KcpListener::bind_with("127.0.0.1:0", raw_config()).await.unwrap();
        let mut settings = client_settings(listener.local_addr().unwrap(), recording.common());
        settings.compression = recording.compression;
        settings.smux_version =
            if recording.version == 1 { SmuxVersion::V1 } else { SmuxVersion::V2 };
        let (running, addr) = start_client(settings, DRAIN).await;
        let addr = addr.unwrap();
        let playing = tokio::spawn({
            let recording = recording.clone();
            async move {
                let (stream, _) = listener.accept().await.unwrap();
                recording.play(Side::Server, stream).await
            }
        });
        let mut users = JoinSet::new();
        for (number, (&id, stream)) in client.0.iter().enumerate() {
            let request = stream.data.clone();
            let expected = server.0.get(&id).map(|said| said.data.clone()).unwrap_or_default();
            let ends_first = recording.client_ends_first(id);
            let mut user = TcpStream::connect(addr).await.unwrap();
            // Streams get their ids in the order of opening.
            running.metric_becomes("tunnel_connections", number as u64 + 1).await;
            users.spawn(async move {
                user.write_all(&request).await.unwrap();
                let mut answer = vec![0; expected.len()];
                user.read_exact(&mut answer).await.unwrap();
                assert!(answer == expected, "the answer of stream {id}");
                if ends_first {
                    user.shutdown().await.unwrap();
                }
                assert_eq!(user.read(&mut [0]).await.unwrap(), 0);
            });
        }
        let name = &recording.name;
        while let Some(user) = within(name, users.join_next()).await {
            user.unwrap();
        }
        let heard = within(name, playing).await.unwrap();
        for (id, stream) in &client.0 {
            assert!(heard.said.0[id].data == stream.data, "{name}: request of stream {id}");
        }
        let framing = (heard.compressed, heard.version);
        assert_eq!(framing, (recording.compression, recording.version), "{name}");
        let bytes: usize = server.0.values().map(|stream| stream.data.len()).sum();
        println!(
            "{name}: {} streams, {bytes} bytes, {} frames of ours",
            client.0.len(),
            heard.count
        );
    }
}
