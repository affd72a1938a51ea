//! IP fragmentation of a socket's datagrams.

use super::*;
use crate::sys::options::{MAX_UNFRAGMENTED_V6, get, set};

const MODE: (i32, i32) = (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);

/// Path MTU reports change nothing over IPv4, before, during and after fragmentation.
#[tokio::test]
async fn ip_fragmentation_over_ipv4_ignores_reports_of_a_path_mtu() {
    let any = if has_ipv6() { "[::]:0" } else { V4 };
    for addr in [V4, any] {
        let socket = std::net::UdpSocket::bind(addr).unwrap();
        let clone = socket.try_clone().unwrap();
        assert_eq!(get(&clone, MODE.0, MODE.1).unwrap(), libc::IP_PMTUDISC_WANT);
        let mut socket = UdpSocket::from_std(socket).unwrap();
        for allow in [true, true, false] {
            socket.set_ip_fragmentation(allow);
            assert_eq!(get(&clone, MODE.0, MODE.1).unwrap(), libc::IP_PMTUDISC_OMIT);
        }
    }
}

#[tokio::test]
async fn ip_fragmentation_option_of_the_application_stays() {
    for mode in [libc::IP_PMTUDISC_DO, libc::IP_PMTUDISC_DONT, libc::IP_PMTUDISC_INTERFACE] {
        let socket = std::net::UdpSocket::bind(V4).unwrap();
        set(&socket, MODE.0, MODE.1, mode).unwrap();
        let clone = socket.try_clone().unwrap();
        let mut socket = UdpSocket::from_std(socket).unwrap();
        for allow in [true, false] {
            socket.set_ip_fragmentation(allow);
            assert_eq!(get(&clone, MODE.0, MODE.1).unwrap(), mode);
        }
    }
}

/// GSO fails for datagrams that the sender must fragment: they leave one by one, and GSO stays on for
/// others.
#[tokio::test]
async fn oversized_datagrams_arrive_with_and_without_ip_fragmentation() {
    for addr in [V4, V6] {
        if addr == V6 && !has_ipv6() {
            continue;
        }
        let (mut a, mut b) = (bound(addr).await, bound(addr).await);
        let (to, segments) = (addr_of(&b), a.max_gso_segments());
        for allow in [true, false] {
            a.set_ip_fragmentation(allow);
            for size in [MAX_UNFRAGMENTED_V6, MAX_UNFRAGMENTED_V6 + 1, 1_400] {
                let contents = gso_batch(10, size, size);
                send_all(&mut a, to, size, &contents).await;
                let (datagrams, _) = receive(&mut b, 10).await;
                let received: Vec<u8> =
                    datagrams.into_iter().flat_map(|(_, datagram)| datagram).collect();
                assert_eq!(received, contents);
            }
            assert_eq!(a.max_gso_segments(), segments);
        }
    }
}
