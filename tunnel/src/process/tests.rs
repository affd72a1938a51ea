//! Tests of the HTTP server.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

/// Sends a request and returns the status and everything after the first line.
async fn request(address: std::net::SocketAddr, line: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (status, rest) = text.split_once("\r\n").unwrap();
    (status.to_owned(), rest.to_owned())
}

#[tokio::test]
async fn metrics_of_every_tunnel_are_served_with_its_name() {
    let counters = Counters::default();
    for (tunnel, value) in [("client :1", 5), ("server :2", 7)] {
        counters.register(move || {
            let mut report = Report::new(tunnel);
            report.metrics.push(Metric::counter("tunnel_sent_bytes", "Bytes sent.", value));
            report.metrics.push(Metric::gauge(
                "tunnel_current_sessions",
                "Sessions now.",
                value + 1,
            ));
            report
        });
    }
    let server = MetricsServer::bind("127.0.0.1:0".parse().unwrap(), counters).await.unwrap();
    let address = server.local_addr().unwrap();
    let task = tokio::spawn(server.run());
    let (status, text) = request(address, "GET /metrics").await;
    assert_eq!(status, "HTTP/1.1 200 OK");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
    assert_eq!(
        body,
        "# HELP kcpx_tunnel_sent_bytes Bytes sent.\n\
         # TYPE kcpx_tunnel_sent_bytes counter\n\
         kcpx_tunnel_sent_bytes_total{tunnel=\"client :1\"} 5\n\
         kcpx_tunnel_sent_bytes_total{tunnel=\"server :2\"} 7\n\
         # HELP kcpx_tunnel_current_sessions Sessions now.\n\
         # TYPE kcpx_tunnel_current_sessions gauge\n\
         kcpx_tunnel_current_sessions{tunnel=\"client :1\"} 6\n\
         kcpx_tunnel_current_sessions{tunnel=\"server :2\"} 8\n\
         # EOF\n"
    );
    assert_eq!(request(address, "GET /").await.0, "HTTP/1.1 404 Not Found");
    assert_eq!(request(address, "POST /metrics").await.0, "HTTP/1.1 405 Method Not Allowed");
    task.abort();
}

#[tokio::test]
async fn metrics_address_in_use_is_an_error_that_names_it() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let error = MetricsServer::bind(address, Counters::default()).await.unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot serve metrics on {address}: ")));
}
