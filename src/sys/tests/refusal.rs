//! ICMP port unreachable on a socket that is not connected.

use std::io::ErrorKind;
use std::net::SocketAddr;

use tokio::io::Interest;

use super::bound;
use crate::sys::transport::Transmit;
use crate::sys::{RefusalWatch, UdpSocket};
use crate::util::path::LocalIp;

/// A port that rejects everything: the socket that has it is connected to another one.
async fn closed() -> (SocketAddr, tokio::net::UdpSocket) {
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect("127.0.0.1:9").await.unwrap();
    (socket.local_addr().unwrap(), socket)
}

fn send(socket: &mut UdpSocket, dst: SocketAddr) -> std::io::Result<usize> {
    socket.send(&Transmit { dst, segment_size: 5, contents: b"hello", local: LocalIp::ANY })
}

#[tokio::test]
async fn refusal_is_reported_while_it_is_watched_and_leaves_no_error() {
    let mut socket = bound("127.0.0.1:0").await;
    let (closed, _other) = closed().await;
    for _ in 0..3 {
        let watch = RefusalWatch::new(&socket, closed).unwrap();
        send(&mut socket, closed).unwrap();
        watch.refused().await;
        drop(watch);
        send(&mut socket, closed).unwrap();
        assert_eq!(send(&mut socket, closed).unwrap(), 5);
    }
}

#[tokio::test]
async fn report_does_not_leave_the_socket_closed_for_writing() {
    let mut socket = bound("127.0.0.1:0").await;
    let (closed, _other) = closed().await;
    let watch = RefusalWatch::new(&socket, closed).unwrap();
    send(&mut socket, closed).unwrap();
    watch.refused().await;
    drop(watch);
    while !socket.readiness(Interest::WRITABLE).is_write_closed() {
        tokio::task::yield_now().await;
    }
    // As a send does that would block.
    socket.clear_write_closed();
    loop {
        match send(&mut socket, closed) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        tokio::task::yield_now().await;
    }
    assert!(!socket.readiness(Interest::WRITABLE).is_write_closed());
}
