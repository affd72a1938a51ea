//! Sockets whose datagrams may be fragmented.

use super::*;
use crate::sys::bind::option::{get, set};
use crate::sys::ip_fragmentation::WHOLE_V6;

const MODE: (i32, i32) = (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);

#[tokio::test]
async fn the_system_may_forbid_it_until_it_is_allowed_and_afterwards() {
    let any = if has_v6() { "[::]:0" } else { V4 };
    for addr in [V4, any] {
        let socket = std::net::UdpSocket::bind(addr).unwrap();
        let twin = socket.try_clone().unwrap();
        let usual = get(&twin, MODE.0, MODE.1).unwrap();
        assert_eq!(usual, libc::IP_PMTUDISC_WANT);
        let mut socket = UdpSocket::from_std(socket).unwrap();
        for _ in 0..2 {
            socket.set_ip_fragmentation(true);
            assert_eq!(get(&twin, MODE.0, MODE.1).unwrap(), libc::IP_PMTUDISC_DONT);
        }
        socket.set_ip_fragmentation(false);
        assert_eq!(get(&twin, MODE.0, MODE.1).unwrap(), usual);
    }
}

#[tokio::test]
async fn the_choice_of_the_application_stays() {
    let socket = std::net::UdpSocket::bind(V4).unwrap();
    set(&socket, MODE.0, MODE.1, libc::IP_PMTUDISC_DO).unwrap();
    let twin = socket.try_clone().unwrap();
    let mut socket = UdpSocket::from_std(socket).unwrap();
    for allow in [true, false] {
        socket.set_ip_fragmentation(allow);
        assert_eq!(get(&twin, MODE.0, MODE.1).unwrap(), libc::IP_PMTUDISC_DO);
    }
}

/// Where only the sender fragments a train is refused; what it holds leaves all the same, and no
/// train is refused for good.
#[tokio::test]
async fn trains_arrive_in_fragments_and_whole() {
    for addr in [V4, V6] {
        if addr == V6 && !has_v6() {
            continue;
        }
        let (mut a, mut b) = (bound(addr).await, bound(addr).await);
        let (to, trains) = (addr_of(&b), a.max_gso_segments());
        for allow in [true, false] {
            a.set_ip_fragmentation(allow);
            for size in [WHOLE_V6, WHOLE_V6 + 1, 1_400] {
                let contents = train(10, size, size);
                send_all(&mut a, to, size, &contents).await;
                let (datagrams, _) = receive(&mut b, 10).await;
                let received: Vec<u8> =
                    datagrams.into_iter().flat_map(|(_, datagram)| datagram).collect();
                assert_eq!(received, contents);
            }
            assert_eq!(a.max_gso_segments(), trains);
        }
    }
}
