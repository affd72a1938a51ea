//! Out-of-band packets: this crate reads the packets of kcp-go and sends equal ones.

use std::time::Duration;

use kcpx::fec::{self, FecFlag};
use kcpx::{Config, FecConfig, KcpListener, KcpStream, Redundancy};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::unhex;

#[derive(Debug, Deserialize)]
struct File {
    vectors: Vec<Vector>,
}

#[derive(Debug, Deserialize)]
struct Vector {
    conv: u32,
    payload: String,
    packet: String,
}

fn vectors() -> Vec<Vector> {
    let file: File = serde_json::from_str(include_str!("oob.json")).unwrap();
    assert!(!file.vectors.is_empty());
    file.vectors
}

/// Sets bytes 8 to 11 of a packet: the conversation id, which a stream chooses at random.
fn with_conv(packet: &str, conv: u32) -> Vec<u8> {
    let mut packet = unhex(packet);
    packet[8..12].copy_from_slice(&conv.to_le_bytes());
    packet
}

async fn receive(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 2_000];
    let len = timeout(Duration::from_secs(60), socket.recv(&mut buffer)).await.unwrap().unwrap();
    buffer.truncate(len);
    buffer
}

/// Rules: W-140, W-141, W-142, W-144, W-145, W-151.
#[tokio::test]
async fn kcp_go_oob_packets_are_sent_and_received() {
    let config =
        Config::new().redundancy(Redundancy::Fec(FecConfig::new(10, 3).unwrap())).early_data(true);
    // A plain socket takes the place of the peer and receives the packets.
    let wire = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut stream = KcpStream::connect_with(wire.local_addr().unwrap(), config).await.unwrap();
    // Datagrams wait for the initial segment, which is an FEC shard here.
    stream.write_all(b"!").await.unwrap();
    assert_eq!(fec::fec_flag(&receive(&wire).await), FecFlag::Data);
    // A receiver needs no FEC. The test sends the initial segment of the recorded conversation.
    let listener = KcpListener::bind("127.0.0.1:0").await.unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    sender.connect(listener.local_addr().unwrap()).await.unwrap();
    let mut initial = unhex("4433221151000002");
    initial.resize(24, 0);
    initial[20] = 1;
    initial.push(b'!');
    sender.send(&initial).await.unwrap();
    let (mut peer, _) = listener.accept().await.unwrap();
    assert_eq!((peer.read_u8().await.unwrap(), peer.conv()), (b'!', 0x1122_3344));
    // Answers the ping: out-of-band datagrams are accepted from validated peers only.
    let answer = receive(&sender).await;
    let mut pong = answer.chunks_exact(24).find(|segment| segment[4] == 81).unwrap().to_vec();
    pong[4] = 82;
    pong[16..20].fill(0);
    sender.send(&pong).await.unwrap();
    peer.established().await.unwrap();

    let vectors = vectors();
    for vector in &vectors {
        let payload = unhex(&vector.payload);
        stream.datagrams().send(&payload).unwrap();
        let mut sent = receive(&wire).await;
        while fec::fec_flag(&sent) != FecFlag::OutOfBand {
            // Skips retransmissions of the initial segment.
            sent = receive(&wire).await;
        }
        assert_eq!(sent, with_conv(&vector.packet, stream.conv()));

        assert_eq!(vector.conv, peer.conv());
        sender.send(&unhex(&vector.packet)).await.unwrap();
        let got = timeout(Duration::from_secs(60), peer.datagrams().recv()).await.unwrap();
        assert_eq!(got.unwrap(), payload);
    }
    // The byte stream still works.
    peer.write_all(b"!").await.unwrap();
    println!("oob.json: {} vectors ok", vectors.len());
}
