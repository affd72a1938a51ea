use kcpx_smux::{Config, Session};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::*;

fn metric(stats: &TunnelStats, name: &str) -> u64 {
    let report = stats.report("tunnel");
    report.metrics.iter().find(|metric| metric.name == name).unwrap().value
}

#[tokio::test]
async fn counters_of_ended_sessions_stay_and_their_states_do_not() {
    let stats = Arc::new(TunnelStats::default());
    for round in 1..=2 {
        let (near, far) = duplex(65_536);
        let client = Session::client(near, Config::new()).unwrap();
        let server = Session::server(far, Config::new()).unwrap();
        let registration = stats.register(None, None);
        registration.add_session(&server);
        let mut stream = client.open_stream().await.unwrap();
        stream.write_all(b"0123456789").await.unwrap();
        let mut accepted = server.accept_stream().await.unwrap();
        let mut first = [0; 4];
        accepted.read_exact(&mut first).await.unwrap();
        assert_eq!(metric(&stats, "smux_current_streams"), 1);
        assert_eq!(metric(&stats, "smux_unread_bytes"), 6);
        drop(registration);
        assert_eq!(metric(&stats, "smux_current_streams"), 0);
        assert_eq!(metric(&stats, "smux_unread_bytes"), 0);
        assert_eq!(metric(&stats, "smux_accepted_streams"), round);
        assert_eq!(metric(&stats, "smux_received_syn_frames"), round);
        assert_eq!(metric(&stats, "smux_received_psh_frames"), round);
        assert_eq!(metric(&stats, "smux_received_payload_bytes"), 10 * round);
        // Two headers of 8 bytes.
        assert_eq!(metric(&stats, "smux_received_bytes"), 26 * round);
    }
}

#[test]
fn connections_are_counted_at_most() {
    let stats = Arc::new(TunnelStats::default());
    let links: Vec<_> = (0..3).map(|_| Arc::new(Link::default())).collect();
    let registrations: Vec<_> = links.iter().map(|link| stats.register(Some(link), None)).collect();
    let without_link = stats.register(None, None);
    drop(registrations);
    drop(without_link);
    let _one = stats.register(Some(&links[0]), None);
    assert_eq!(stats.report("tunnel").snmp.max_conn, 3);
}

#[test]
fn documented_metrics_equal_the_programs() {
    let path = format!("{}/docs/metrics.md", env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(path).unwrap();
    let documented: Vec<_> = document.lines().filter(|line| line.starts_with("| `")).collect();
    let report = TunnelStats::default().report("tunnel");
    let expected: Vec<_> = report
        .metrics
        .iter()
        .map(|metric| {
            let (kind, suffix) = match metric.kind {
                crate::process::MetricKind::Counter => ("counter", "_total"),
                crate::process::MetricKind::Gauge => ("gauge", ""),
            };
            format!("| `kcpx_{}{suffix}` | {kind} | {} |", metric.name, metric.help)
        })
        .collect();
    assert_eq!(documented, expected);
}
