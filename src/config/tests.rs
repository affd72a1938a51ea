//! Defaults, presets, and validation errors.

use std::num::NonZeroU8;

use super::*;

#[test]
fn default_config_is_valid() {
    Config::default().validate().unwrap();
}

#[test]
fn timing_presets_equal_kcptuns() {
    let numbers = |p: Timing| {
        let resend = p.fast_resend.map_or(0, NonZeroU8::get);
        (p.nodelay, p.interval.as_millis(), resend, p.congestion == CongestionControl::Model)
    };
    assert_eq!(numbers(Timing::NORMAL), (false, 40, 2, true));
    assert_eq!(numbers(Timing::FAST), (false, 30, 2, true));
    assert_eq!(numbers(Timing::FAST2), (true, 20, 2, true));
    assert_eq!(numbers(Timing::FAST3), (true, 10, 2, true));
    assert_eq!(numbers(Timing::KCP_DEFAULT), (false, 100, 0, false));
    assert_eq!(KcpConfig::default().timing.congestion, CongestionControl::Model);
    assert_eq!(
        numbers(Timing::FAST3.with_congestion(CongestionControl::Disabled)),
        (true, 10, 2, false)
    );
}

#[test]
fn config_error_names_the_field() {
    let refused = |change: fn(&mut Config)| {
        let mut config = Config::default();
        change(&mut config);
        config.validate().unwrap_err().to_string()
    };
    assert_eq!(refused(|c| c.kcp.mtu = 24), "mtu (bytes) must be between 25 and 65507, got 24");
    assert_eq!(
        refused(|c| c.kcp.send_window = 0),
        "send_window (segments) must be between 1 and 65535, got 0"
    );
    assert_eq!(
        refused(|c| c.kcp.keepalive = KeepaliveInterval::After(Duration::from_millis(10))),
        "keepalive (ms) must be between 1000 and 86400000, got 10"
    );
    assert_eq!(refused(|c| c.socket.dscp = Some(64)), "dscp must be between 0 and 63, got 64");
    assert_eq!(refused(|c| c.socket.ttl = Some(0)), "ttl (hops) must be between 1 and 255, got 0");
    assert_eq!(
        refused(|c| c.socket.device = Some("x".repeat(16))),
        "length of device (bytes) must be between 1 and 15, got 16"
    );
    assert_eq!(refused(|c| c.duplicates = 9), "duplicates must be between 0 and 8, got 9");
    assert!(
        refused(|c| c.kcp.recv_memory = Some(1))
            .starts_with("recv_memory (bytes) must be between 1540 and ")
    );
    assert!(refused(|c| c.limits.backlog = 0).starts_with("backlog must be between 1 and "));
    assert_eq!(
        refused(|c| c.limits.memory = 1),
        "memory (bytes) must be between 16777216 and 1099511627776, got 1"
    );
    assert!(
        Timing::new(true, Duration::from_millis(5), None, CongestionControl::Disabled)
            .is_err_and(|e| e.to_string() == "interval (ms) must be between 10 and 5000, got 5")
    );
}
