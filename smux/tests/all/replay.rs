//! Recordings of smux 1.5.56 in `tests/vectors`, with the same inputs and actions here.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use crate::common::frames::{FIN, Frame, NOP, PSH, Peer, SYN, UPD, hex, parse};
use crate::common::{VERSIONS, number, raw_client, raw_server, within};
use kcpx_smux::{Config, Stream, Version};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn vector(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Everything that `from` has written, as one byte string.
fn written(vector: &Value, from: &str) -> Vec<u8> {
    let writes = vector.as_array().unwrap().iter();
    writes
        .filter(|row| row["from"] == from)
        .flat_map(|row| hex(row["bytes"].as_str().unwrap()))
        .collect()
}

fn quiet() -> Config {
    Config::new().keepalive(None)
}

/// Reads until the end, an error, or until nothing more arrives.
async fn read_out(stream: &mut Stream) -> (Vec<u8>, Result<&'static str, ErrorKind>) {
    let mut bytes = Vec::new();
    let wait = Duration::from_millis(60);
    loop {
        match tokio::time::timeout(wait, stream.read_buf(&mut bytes)).await {
            Ok(Ok(0)) => return (bytes, Ok("EOF")),
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return (bytes, Err(error.kind())),
            Err(_) => return (bytes, Ok("timeout")),
        }
    }
}

async fn check_bad_input(version: Version, row: &Value, piece: usize) {
    let case = row["case"].as_str().unwrap();
    println!("{version:?}, pieces of {piece}: {case}");
    let (session, mut peer) = raw_server(version, quiet());
    for piece in hex(row["bytes"].as_str().unwrap()).chunks(piece) {
        peer.io.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    let carrier_ends = row["read_end"] == "unexpected EOF";
    if carrier_ends {
        peer.io.shutdown().await.unwrap();
    }
    let mut stream = within(1, session.accept_stream()).await.unwrap();
    let (bytes, end) = read_out(&mut stream).await;
    let mut frames = peer.frames().await;
    let id = stream.id();
    let written = stream.write(b"answer").await;
    frames.extend(peer.frames().await);
    let opened = session.open_stream().await;
    let (rest, carrier_ended) = peer.read_all().await;
    frames.extend(parse(&rest));

    let theirs = row["read"].as_str().unwrap().as_bytes();
    if carrier_ends || row["read_end"] == "invalid protocol" {
        // smux 1.5.56 keeps the session half alive; here it ends. Payload is passed on as it
        // arrives, even if its frame is incomplete.
        let arrived = if case == "carrier ends in a payload" { b"hix" } else { theirs };
        let kind = if carrier_ends { ErrorKind::UnexpectedEof } else { ErrorKind::InvalidData };
        assert_eq!((bytes.as_slice(), end), (arrived, Err(kind)));
        assert_eq!(written.unwrap_err().kind(), kind);
        assert!(opened.is_err() && session.accept_stream().await.is_err());
        assert!(session.is_closed() && carrier_ended);
        return;
    }
    assert!(opened.is_ok() && !carrier_ended && !session.is_closed());
    let mut expected = parse(&self::written(&row["server_writes"], "server"));
    // An update counts all bytes read before it is sent; smux sends it within the first read.
    for (ours, theirs) in frames.iter().zip(&mut expected) {
        if ours.cmd == UPD && theirs.cmd == UPD {
            assert!(ours.update().0 as usize <= bytes.len() && ours.update() >= theirs.update());
            theirs.payload.clone_from(&ours.payload);
        }
    }
    match case {
        "PSH after FIN" | "SYN again after FIN" => {
            assert_eq!((bytes.as_slice(), end), (&b"hi"[..], Ok("EOF")));
            assert_eq!(frames, expected);
            assert!(session.stats().payload_dropped > 0);
        }
        "UPD consumed more than sent" => {
            // The stream ends at once, not with its next write.
            assert_eq!((bytes.as_slice(), end), (theirs, Err(ErrorKind::InvalidData)));
            assert_eq!(written.unwrap_err().kind(), ErrorKind::InvalidData);
            assert!(frames.contains(&Frame::new(2, FIN, id, b"")), "{frames:?}");
            assert!(frames.contains(&Frame::new(2, SYN, 2, b"")), "{frames:?}");
        }
        _ => {
            assert_eq!((bytes.as_slice(), end), (theirs, Ok(row["read_end"].as_str().unwrap())));
            assert_eq!(frames, expected);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bad_input_has_the_effect_of_the_table() {
    for version in VERSIONS {
        let vector = vector(&format!("smux-1.5.56-bad-input-v{}.json", number(version)));
        let rows = vector["notes"].as_array().unwrap();
        assert!(rows.len() >= 18);
        for row in rows {
            if row["accept"] != "ok" {
                continue;
            }
            for piece in [1, 3, usize::MAX] {
                check_bad_input(version, row, piece).await;
            }
        }
    }
}

/// The carrier ends at each byte of a stream's frames.
#[tokio::test(start_paused = true)]
async fn carrier_that_ends_inside_a_frame_is_an_unexpected_eof() {
    for version in VERSIONS {
        let input = [(SYN, &b""[..]), (PSH, b"hello")]
            .map(|(cmd, payload)| Frame::new(number(version), cmd, 3, payload).encode())
            .concat();
        for end in 8..=input.len() {
            let (session, mut peer) = raw_server(version, quiet());
            peer.io.write_all(&input[..end]).await.unwrap();
            let mut stream = session.accept_stream().await.unwrap();
            drop(peer);
            let (bytes, result) = read_out(&mut stream).await;
            assert_eq!(bytes, b"hello"[..end.saturating_sub(16)]);
            let between = end == 8 || end == input.len();
            let kind = if between { ErrorKind::BrokenPipe } else { ErrorKind::UnexpectedEof };
            assert_eq!(result, Err(kind), "{end}");
            let kinds = [
                session.open_stream().await.unwrap_err().kind(),
                session.accept_stream().await.unwrap_err().kind(),
                session.closed().await.kind(),
            ];
            assert_eq!(kinds, [kind; 3]);
        }
    }
}

fn pattern(len: u32) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + (i >> 8) * 7 + (i >> 16) * 3) as u8).collect()
}

/// Repeats the recorded client's actions against the recorded bytes of the server.
#[tokio::test(start_paused = true)]
async fn recorded_server_is_understood_and_our_client_writes_the_recorded_frames() {
    for version in VERSIONS {
        let vector = vector(&format!("smux-v{}.json", number(version)));
        let (session, mut peer) = raw_client(version, quiet());
        let server = parse(&written(&vector["writes"], "server"));
        let mut ours = Vec::new();
        for (i, len) in [5, 1_000, 70_000].into_iter().enumerate() {
            let mut stream = session.open_stream().await.unwrap();
            assert_eq!(stream.id(), 3 + 2 * i as u32);
            let data = pattern(len);
            stream.write_all(&data).await.unwrap();
            ours.extend(peer.frames().await);
            for frame in server.iter().filter(|frame| frame.id == stream.id() && frame.cmd != FIN) {
                peer.io.write_all(&frame.encode()).await.unwrap();
            }
            let mut echoed = vec![0; data.len()];
            stream.read_exact(&mut echoed).await.unwrap();
            assert!(echoed == data);
            ours.extend(peer.frames().await);
            stream.shutdown().await.unwrap();
            peer.send(FIN, stream.id(), b"").await;
            assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
            ours.extend(peer.frames().await);
        }
        let of = |id, frames: &[Frame]| -> Vec<Frame> {
            let is_data = |frame: &&Frame| frame.id == id && frame.cmd != UPD;
            frames.iter().filter(is_data).cloned().collect()
        };
        let theirs = parse(&written(&vector["writes"], "client"));
        for id in [3, 5, 7] {
            assert_eq!(of(id, &ours), of(id, &theirs));
        }
        // Reads of 5 and 1,000 bytes are one read; the 70,000 bytes come in pieces.
        let small = |frames: &[Frame]| -> Vec<Frame> {
            frames.iter().filter(|frame| frame.cmd == UPD && frame.id < 7).cloned().collect()
        };
        assert_eq!(small(&ours), small(&theirs));
        assert_eq!(session.num_streams(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn recorded_client_is_understood_whatever_the_version_setting() {
    for version in VERSIONS {
        let vector = vector(&format!("smux-v{}.json", number(version)));
        for setting in [version, Version::Any] {
            let (session, mut peer) = raw_server(setting, quiet());
            assert_eq!(session.version().is_none(), setting == Version::Any);
            peer.version = number(version);
            // Without the updates for echoes that are not written yet.
            for frame in parse(&written(&vector["writes"], "client")) {
                if frame.cmd != UPD {
                    peer.io.write_all(&frame.encode()).await.unwrap();
                }
            }
            for (id, len) in [(3, 5), (5, 1_000), (7, 70_000)] {
                let mut stream = session.accept_stream().await.unwrap();
                assert_eq!(stream.id(), id);
                let mut received = Vec::new();
                stream.read_to_end(&mut received).await.unwrap();
                assert!(received == pattern(len));
                stream.write_all(&received).await.unwrap();
                stream.shutdown().await.unwrap();
                let frames = peer.frames().await;
                let data: Vec<_> = frames.into_iter().filter(|frame| frame.cmd != UPD).collect();
                assert!(data.iter().all(|frame| frame.version == number(version)));
                let sent: Vec<u8> = data.iter().flat_map(|frame| frame.payload.clone()).collect();
                assert!(sent == received);
                assert_eq!(data.last().unwrap().cmd, FIN);
            }
            assert_eq!(session.version(), Some(number(version)));
            let nops = parse(&written(&vector["writes"], "client"));
            let nops = nops.iter().filter(|frame| frame.cmd == NOP).count() as u64;
            assert_eq!(session.stats().frames_received.nop, nops);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn half_close_writes_the_recorded_frames() {
    for version in VERSIONS {
        let vector = vector(&format!("smux-1.5.56-halfclose-v{}.json", number(version)));
        let (client, mut to_server) = raw_client(version, quiet());
        let (server, mut to_client) = raw_server(version, quiet());
        let mut stream = client.open_stream().await.unwrap();
        let asked_for = vector["notes"]["server_read"].as_str().unwrap();
        stream.write_all(asked_for.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let asked = to_server.read_all().await.0;
        to_client.io.write_all(&asked).await.unwrap();

        let mut accepted = server.accept_stream().await.unwrap();
        let mut received = Vec::new();
        accepted.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, asked_for.as_bytes());
        let mut answered = to_client.read_all().await.0;
        accepted.write_all(b"late answer").await.unwrap();
        accepted.shutdown().await.unwrap();
        answered.extend(to_client.read_all().await.0);
        to_server.io.write_all(&answered).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;

        assert_eq!(parse(&asked), parse(&written(&vector["writes"], "client")));
        assert_eq!(parse(&answered), parse(&written(&vector["writes"], "server")));
        // Both have forgotten the stream, but the answer is still readable.
        assert_eq!((client.num_streams(), server.num_streams()), (0, 0));
        assert_eq!(read_out(&mut stream).await, (b"late answer".to_vec(), Ok("EOF")));
    }
}

#[tokio::test(start_paused = true)]
async fn stream_ids_are_the_recorded_ones() {
    for version in VERSIONS {
        let vector = vector(&format!("smux-1.5.56-ids-v{}.json", number(version)));
        let (client, mut to_server) = raw_client(version, quiet());
        let (server, mut to_client) = raw_server(version, quiet());
        for _ in 0..3 {
            std::mem::forget(client.open_stream().await.unwrap());
            std::mem::forget(server.open_stream().await.unwrap());
        }
        assert_eq!(to_server.read_all().await.0, written(&vector["writes"], "client"));
        assert_eq!(to_client.read_all().await.0, written(&vector["writes"], "server"));
    }
}

#[tokio::test(start_paused = true)]
async fn queued_frames_of_several_streams_keep_their_order_per_stream() {
    for version in VERSIONS {
        let vector = vector(&format!("smux-1.5.56-shaper-v{}.json", number(version)));
        let theirs = parse(&written(&vector["writes"], "client"));
        let (client, mut peer) = raw_client(version, quiet());
        let mut streams = Vec::new();
        for _ in 0..3 {
            streams.push(client.open_stream().await.unwrap());
        }
        for frame in theirs.iter().filter(|frame| frame.cmd == PSH) {
            let stream = streams.iter_mut().find(|stream| stream.id() == frame.id).unwrap();
            stream.write_all(&frame.payload).await.unwrap();
        }
        drop(streams.remove(1));
        streams.push(client.open_stream().await.unwrap());
        let ours = peer.frames().await;
        for id in [3, 5, 7, 9] {
            let of = |frames: &[Frame]| -> (Vec<u8>, Vec<u8>) {
                let frames: Vec<_> = frames.iter().filter(|frame| frame.id == id).collect();
                let payload = frames.iter().filter(|frame| frame.cmd == PSH);
                let others = frames.iter().filter(|frame| [FIN].contains(&frame.cmd));
                (payload.flat_map(|f| f.payload.clone()).collect(), others.map(|f| f.cmd).collect())
            };
            assert_eq!(of(&ours), of(&theirs));
            let syn = ours.iter().position(|frame| frame.id == id && frame.cmd == SYN).unwrap();
            assert!(ours[..syn].iter().all(|frame| frame.id != id));
            let fin = ours.iter().position(|frame| frame.id == id && frame.cmd == FIN);
            assert!(fin.is_none_or(|fin| ours[fin..].iter().all(|f| f.id != id || f.cmd != PSH)));
        }
    }
}

const WINDOWS: [&str; 6] = [
    "v1-buf65536-frame32768-read4096",
    "v2-buf2097152-frame65535-read4096",
    "v2-buf2097152-frame8192-read4096",
    "v2-buf65536-frame32768-read4096",
    "v2-buf65536-frame32768-read65536",
    "v2-buf8192-frame32768-read1000",
];

fn number_of(value: &Value, name: &str) -> usize {
    value[name].as_u64().unwrap() as usize
}

fn window_config(vector: &Value) -> (Version, Config) {
    let config = &vector["config"];
    let version = if vector["version"] == 1 { Version::V1 } else { Version::V2 };
    let settings = quiet()
        .max_frame_size(number_of(config, "max_frame_size"))
        .max_stream_buffer(number_of(config, "max_stream_buffer"))
        .send_buffer(1 << 20);
    (version, settings)
}

#[tokio::test(start_paused = true)]
async fn first_window_is_used_up_in_frames_of_the_recorded_sizes() {
    for name in WINDOWS {
        let vector = vector(&format!("smux-1.5.56-window-{name}.json"));
        let (version, config) = window_config(&vector);
        let (session, mut peer) = raw_client(version, config);
        let mut stream = session.open_stream().await.unwrap();
        let total = number_of(&vector["config"], "total");
        let writer = tokio::spawn(async move {
            stream.write_all(&vec![1; total]).await.unwrap();
            std::future::pending::<()>().await;
        });
        let frames = peer.frames().await;
        let notes = &vector["notes"];
        let allowed = number_of(notes, "payload_sent_before_first_read");
        let sent: usize = frames.iter().map(|frame| frame.payload.len()).sum();
        assert_eq!(sent, allowed, "{name}");
        let sizes = notes["first_payload_sizes"].as_array().unwrap().iter();
        let theirs: Vec<_> = sizes.map(|size| size.as_u64().unwrap() as usize).collect();
        let ours: Vec<_> = frames.iter().map(|frame| frame.payload.len()).collect();
        assert_eq!(ours, theirs[..ours.len()], "{name}");
        writer.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn window_updates_are_the_recorded_ones_for_the_recorded_reads() {
    for name in WINDOWS {
        let vector = vector(&format!("smux-1.5.56-window-{name}.json"));
        let (version, config) = window_config(&vector);
        let (session, mut peer) = raw_server(version, config);
        let read_size = number_of(&vector["config"], "read_size");
        peer.send(SYN, 3, b"").await;
        let mut stream = session.accept_stream().await.unwrap();
        let sizes = vector["notes"]["first_payload_sizes"].as_array().unwrap();
        let (mut ours, mut covered) = (Vec::new(), 0);
        for size in sizes.iter().map(|size| size.as_u64().unwrap() as usize) {
            if size == 0 {
                continue;
            }
            send_and_read(&mut peer, &mut stream, size, read_size, &mut ours).await;
            covered += size as u32;
        }
        let rows = vector["notes"]["updates"].as_array().map_or(&[][..], |rows| rows);
        let field = |row: &Value, name: &str| row[name].as_u64().unwrap() as u32;
        let theirs: Vec<_> = rows
            .iter()
            .map(|row| (field(row, "consumed"), field(row, "window")))
            .filter(|(consumed, _)| *consumed <= covered)
            .collect();
        // The recording ends after 60 frame sizes and 40 updates.
        if theirs.len() == 40 {
            ours.truncate(40);
        }
        assert_eq!(ours, theirs, "{name}");
        assert!(version == Version::V1 || !theirs.is_empty());
    }
}

/// Sends one frame and reads as smux does: a read ends with its frame.
async fn send_and_read(
    peer: &mut Peer,
    stream: &mut Stream,
    size: usize,
    read_size: usize,
    updates: &mut Vec<(u32, u32)>,
) {
    peer.send(PSH, 3, &vec![0; size]).await;
    let mut left = size;
    while left > 0 {
        let len = read_size.min(left);
        stream.read_exact(&mut vec![0; len]).await.unwrap();
        left -= len;
        updates.extend(peer.frames().await.iter().map(Frame::update));
    }
}
