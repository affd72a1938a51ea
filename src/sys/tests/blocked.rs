//! Blocked sends: a socket is registered for writing only then.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::task::Poll;

use super::{V4, addr_of, bound, receive, send_all};
use crate::sys::transport::Transmit;
use crate::util::path::LocalIp;

/// Linux reports a UDP socket as writable after each sent datagram; no task waits for that.
#[tokio::test]
async fn send_that_would_block_waits_until_the_socket_is_writable() {
    let (mut a, mut b) = (bound(V4).await, bound(V4).await);
    let (from, to) = (addr_of(&a), addr_of(&b));
    for round in 0..3 {
        a.block();
        let transmit =
            Transmit { dst: to, segment_size: 1, contents: &[round], local: LocalIp::ANY };
        // The socket is blocked until the runtime reports it writable.
        assert_eq!(a.send(&transmit).unwrap_err().kind(), ErrorKind::WouldBlock);
        poll_fn(|cx| a.poll_send_ready(cx)).await.unwrap();
        assert_eq!(a.send(&transmit).unwrap(), 1);
        assert_eq!(receive(&mut b, 1).await.0, [(from, vec![round])]);
    }
}

/// As without free descriptors: a thread without a runtime cannot register the socket.
#[tokio::test]
async fn send_that_would_block_is_tried_again_where_nothing_can_be_registered() {
    let (mut a, mut b) = (bound(V4).await, bound(V4).await);
    let (from, to) = (addr_of(&a), addr_of(&b));
    let blocked = move || {
        a.block();
        a
    };
    let mut a = std::thread::spawn(blocked).join().unwrap();
    let ready = poll_fn(|cx| Poll::Ready(a.poll_send_ready(cx).is_ready())).await;
    assert!(!ready, "the driver would spin");
    send_all(&mut a, to, 1, b"x").await;
    assert_eq!(receive(&mut b, 1).await.0, [(from, b"x".to_vec())]);
    assert!(poll_fn(|cx| Poll::Ready(a.poll_send_ready(cx).is_ready())).await);
}
