use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, empty};

use super::chunk::{MAX_DATA, STREAM_IDENTIFIER};
use super::{SnappyError, SnappyStream};

/// Output of kcptun 20210922 for an idle connection: stream identifier, SYN of smux version 1.
const SYN: &str = "ff060000734e61507059010c00004439ac2f0100000003000000";

fn hex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// A carrier that returns `bytes`, `step` at a time, and then the end.
fn carrier(bytes: &[u8], step: usize) -> tokio_test::io::Mock {
    let mut script = tokio_test::io::Builder::new();
    bytes.chunks(step).fold(&mut script, |script, part| script.read(part)).build()
}

async fn decoded(bytes: &[u8], step: usize) -> std::io::Result<Vec<u8>> {
    let mut data = Vec::new();
    SnappyStream::new(carrier(bytes, step)).read_to_end(&mut data).await?;
    Ok(data)
}

async fn encoded(parts: &[&[u8]]) -> Vec<u8> {
    let (near, mut far) = duplex(1 << 20);
    let mut stream = SnappyStream::new(near);
    for part in parts {
        stream.write_all(part).await.unwrap();
        stream.flush().await.unwrap();
    }
    drop(stream);
    let mut bytes = Vec::new();
    far.read_to_end(&mut bytes).await.unwrap();
    bytes
}

fn failure(error: &std::io::Error) -> SnappyError {
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
    error.get_ref().and_then(|cause| cause.downcast_ref::<SnappyError>()).unwrap().clone()
}

/// Bytes that compress, and from `random` on bytes that do not.
fn sample(len: usize, random: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..len)
        .map(|at| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if at < random { (at / 100) as u8 } else { state as u8 }
        })
        .collect()
}

#[tokio::test]
async fn syn_of_smux_is_written_as_kcptun_writes_it() {
    assert_eq!(encoded(&[&[1, 0, 0, 0, 3, 0, 0, 0]]).await, hex(SYN));
}

#[tokio::test]
async fn recorded_streams_of_kcptun_decode_whichever_way_they_arrive() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let Some(version) = name.strip_suffix("-comp.json").and_then(|name| name.chars().last())
        else {
            continue;
        };
        let text = std::fs::read_to_string(&path).unwrap();
        let vector: serde_json::Value = serde_json::from_str(&text).unwrap();
        for side in ["client", "server"] {
            let bytes = hex(vector["streams"][side][0].as_str().unwrap());
            let data = decoded(&bytes, bytes.len()).await.unwrap();
            assert_eq!(char::from(b'0' + data[0]), version, "{name}: smux version");
            assert_eq!(decoded(&bytes, 1).await.unwrap(), data, "{name}: byte by byte");
            // Re-encoded chunks of the same data decode to it.
            let again = encoded(&[&data]).await;
            assert_eq!(decoded(&again, 1_000).await.unwrap(), data, "{name}: again");
            count += 1;
        }
    }
    println!("{count} recorded directions");
    assert_eq!(count, 20);
}

#[tokio::test]
async fn each_flush_writes_one_chunk_of_at_most_64_kib() {
    let bytes = encoded(&[b"abc", &vec![7; 200_000], b"def"]).await;
    let (mut rest, mut types) = (&bytes[..], Vec::new());
    while let Some((&[chunk_type, low, middle, high], body)) = rest.split_first_chunk::<4>() {
        let len = usize::from(low) | usize::from(middle) << 8 | usize::from(high) << 16;
        types.push((chunk_type, len));
        rest = &body[len..];
    }
    let kinds: Vec<_> = types.iter().map(|(chunk_type, _)| *chunk_type).collect();
    // Identifier; three bytes; 65,536 three times and the rest; three bytes.
    assert_eq!(kinds, [0xff, 1, 0, 0, 0, 0, 1], "{types:?}");
    assert_eq!(decoded(&bytes, 77).await.unwrap().len(), 200_006);
}

/// Later bytes wait behind a chunk: it is short while the carrier is slow, unless the data shrinks.
#[tokio::test]
async fn chunks_of_random_data_are_short_while_the_carrier_is_slow() {
    for (random, longest) in [(0, 8 << 10), (400_000, MAX_DATA)] {
        let (near, mut far) = duplex(1_000);
        let mut stream = SnappyStream::new(near);
        let writing = tokio::spawn(async move {
            stream.write_all(&sample(400_000, random)).await.unwrap();
            stream.flush().await.unwrap();
        });
        let mut bytes = Vec::new();
        far.read_to_end(&mut bytes).await.unwrap();
        writing.await.unwrap();
        let (mut lengths, mut at) = (Vec::new(), STREAM_IDENTIFIER.len());
        while at < bytes.len() {
            let len = u32::from_le_bytes([bytes[at + 1], bytes[at + 2], bytes[at + 3], 0]) as usize;
            // Checksum, and raw data, or the length of the data followed by its compressed form.
            let data = if bytes[at] == 1 { len - 4 } else { uncompressed_len(&bytes[at + 8..]) };
            lengths.push(data);
            at += 4 + len;
        }
        assert_eq!(lengths[1..].iter().max(), Some(&longest), "{lengths:?}");
    }
}

/// The length of the data that a Snappy block begins with.
fn uncompressed_len(block: &[u8]) -> usize {
    let bytes = block.iter().take_while(|byte| **byte >= 128).count() + 1;
    block[..bytes].iter().rev().fold(0, |len, byte| len << 7 | usize::from(byte & 127))
}

#[tokio::test]
async fn small_writes_over_a_small_buffer_deliver_the_same_bytes() {
    let data = sample(150_000, 70_000);
    let (near, far) = duplex(3);
    let (mut writer, mut reader) = (SnappyStream::new(near), SnappyStream::new(far));
    let (sent, expected) = (data.clone(), data.len());
    let writing = tokio::spawn(async move {
        for (number, part) in sent.chunks(1).enumerate() {
            writer.write_all(part).await.unwrap();
            if number % 10_007 == 0 {
                writer.flush().await.unwrap();
            }
        }
        writer.shutdown().await.unwrap();
        writer
    });
    let mut received = Vec::new();
    while let Ok(byte) = reader.read_u8().await {
        received.push(byte);
    }
    drop(writing.await.unwrap());
    assert_eq!((received.len(), received == data), (expected, true));
}

#[tokio::test]
async fn incompressible_data_costs_eight_bytes_a_chunk() {
    let data = sample(MAX_DATA, 0);
    let bytes = encoded(&[&data]).await;
    assert_eq!(bytes.len(), STREAM_IDENTIFIER.len() + 8 + MAX_DATA);
    assert_eq!(decoded(&bytes, 4_096).await.unwrap(), data);
}

#[tokio::test]
async fn skippable_chunks_and_further_identifiers_are_accepted() {
    let mut bytes = hex(SYN);
    bytes.extend([0x80, 3, 0, 0, 9, 9, 9, 0xfe, 0x00, 0x01, 0x02]);
    bytes.extend(vec![5; 0x02_01_00]);
    bytes.extend(hex(SYN));
    for step in [1, 7, bytes.len()] {
        assert_eq!(decoded(&bytes, step).await.unwrap(), hex("01000000030000000100000003000000"));
    }
}

#[tokio::test]
async fn malformed_input_is_an_error_by_name() {
    let with = |tail: &[u8]| [&hex(SYN)[..10], tail].concat();
    let cases = [
        (hex("0100000003000000"), SnappyError::NoStreamIdentifier { chunk_type: 1 }),
        (hex("ff060000734e61507058"), SnappyError::InvalidStreamIdentifier),
        (hex("ff07000073"), SnappyError::InvalidStreamIdentifier),
        (with(&[0x02, 0, 0, 0]), SnappyError::ReservedChunkType { chunk_type: 2 }),
        (with(&[0x7f, 0, 0, 0]), SnappyError::ReservedChunkType { chunk_type: 0x7f }),
        (with(&[1, 3, 0, 0, 0, 0, 0]), SnappyError::ChunkLength { len: 3 }),
        (with(&[0, 0xcf, 0x2a, 1]), SnappyError::ChunkLength { len: 76_495 }),
        (
            with(&[&[1, 5, 0, 1][..], &vec![0; 65_541]].concat()),
            SnappyError::DataLength { len: 65_537 },
        ),
        (
            with(&hex("010c00004439ac2f0100000003000001")),
            SnappyError::Checksum { expected: 0x2fac_3944, actual: 0x9cfa_c8f7 },
        ),
    ];
    for (bytes, expected) in cases {
        // Not a mock: that panics if something is left over.
        let mut stream = SnappyStream::new(&bytes[..]);
        let found = failure(&stream.read_to_end(&mut Vec::new()).await.unwrap_err());
        // The checksum of the altered data is computed by the same function.
        if let SnappyError::Checksum { expected, .. } = &found {
            assert_eq!(*expected, 0x2fac_3944);
        } else {
            assert_eq!(found, expected);
        }
        // An error persists.
        let again = failure(&stream.read_to_end(&mut Vec::new()).await.unwrap_err());
        assert_eq!(again, found);
    }
    let error = decoded(&with(&hex("00080000000000000a0b0c0d")), 1).await.unwrap_err();
    assert!(matches!(failure(&error), SnappyError::Compression(_)), "{error}");
}

#[tokio::test]
async fn end_inside_a_chunk_is_an_unexpected_end() {
    let bytes = hex(SYN);
    for len in 1..bytes.len() {
        let read = decoded(&bytes[..len], len).await;
        if len == 10 {
            assert_eq!(read.unwrap(), b"");
        } else {
            assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof, "{len}");
        }
    }
}

#[tokio::test]
async fn altered_input_never_yields_other_bytes() {
    let original = sample(3_000, 2_000);
    let bytes = encoded(&[&original[..100], &original[100..]]).await;
    for at in 10..bytes.len() {
        for flip in [1, 0x80] {
            let mut altered = bytes.clone();
            altered[at] ^= flip;
            match decoded(&altered, altered.len()).await {
                // A data chunk that became a skippable one.
                Ok(data) => assert!(data.len() < original.len(), "byte {at}"),
                Err(error) => assert!(
                    matches!(
                        error.kind(),
                        std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof
                    ),
                    "byte {at}: {error}"
                ),
            }
        }
    }
}

#[tokio::test]
async fn peek_takes_nothing() {
    let mut stream = SnappyStream::new(carrier(&hex(SYN), 5));
    assert_eq!(stream.peek_byte().await.unwrap(), Some(1));
    assert_eq!(stream.peek_byte().await.unwrap(), Some(1));
    let mut data = Vec::new();
    stream.read_to_end(&mut data).await.unwrap();
    assert_eq!(data, [1, 0, 0, 0, 3, 0, 0, 0]);
    assert_eq!(SnappyStream::new(empty()).peek_byte().await.unwrap(), None);
}
