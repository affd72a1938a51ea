//! ICMP port unreachable on an unconnected socket.

use std::future::poll_fn;
use std::net::SocketAddr;

use super::bound;
use crate::sys::transport::Transmit;
use crate::sys::{RefusalWatch, UdpSocket};
use crate::util::path::LocalIp;

/// A port that rejects everything: its socket is connected to another one.
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
    // The report waits in the queue.
    socket.block();
    poll_fn(|cx| socket.poll_send_ready(cx)).await.unwrap();
    watch.refused().await;
    drop(watch);
    // States that the runtime saw before it knew of the new registration.
    let mut polls = 0;
    while socket.block() {
        polls += 1;
        assert!(polls < 3, "the socket stays closed for writing");
    }
    poll_fn(|cx| socket.poll_send_ready(cx)).await.unwrap();
    assert_eq!(send(&mut socket, closed).unwrap(), 5);
}
