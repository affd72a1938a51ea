//! Counters for Prometheus: `GET /metrics` over plain HTTP.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tracing::warn;

use super::counters::{Counters, Metric, MetricKind};

/// Content type that Prometheus expects for this text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Concurrent connections; more wait to be accepted.
const MAX_CONNECTIONS: usize = 16;
/// Limit for a whole request to arrive.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed `accept`.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An HTTP server that renders the counters at each request.
///
/// ```no_run
/// use kcpx_tunnel::process::{Counters, MetricsServer};
///
/// # async fn run() -> std::io::Result<()> {
/// let server = MetricsServer::bind("127.0.0.1:9464".parse().unwrap(), Counters::default()).await?;
/// server.run().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MetricsServer {
    listener: TcpListener,
    registry: Arc<Registry>,
}

impl MetricsServer {
    /// Binds the address.
    ///
    /// # Errors
    ///
    /// If it cannot be bound.
    pub async fn bind(address: SocketAddr, counters: Counters) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot serve metrics on {address}: {error}"))
        })?;
        let mut registry = Registry::with_prefix("kcpx");
        registry.register_collector(Box::new(TunnelCollector { counters }));
        Ok(Self { listener, registry: Arc::new(registry) })
    }

    /// Returns the listening address.
    ///
    /// # Errors
    ///
    /// If the system does not provide it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until dropped.
    pub async fn run(self) {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            // The semaphore is never closed.
            let Ok(permit) = permits.clone().acquire_owned().await else { return };
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!("metrics: cannot accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let registry = self.registry.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let response = respond(&request, &registry);
                    async move { Ok::<_, Infallible>(response) }
                });
                let mut http = http1::Builder::new();
                http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
                // A client that disconnects is no error of this process.
                let _ended = http.serve_connection(TokioIo::new(stream), service).await;
                drop(permit);
            });
        }
    }
}

fn respond(request: &Request<Incoming>, registry: &Registry) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    if request.uri().path() != "/metrics" {
        *response.status_mut() = StatusCode::NOT_FOUND;
    } else if request.method() != Method::GET {
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    } else {
        let mut text = String::new();
        match prometheus_client::encoding::text::encode(&mut text, registry) {
            Ok(()) => {
                let content_type = HeaderValue::from_static(OPEN_METRICS);
                response.headers_mut().insert(CONTENT_TYPE, content_type);
                *response.body_mut() = Full::from(text);
            }
            Err(_) => *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
    response
}

/// Reads the counters of all tunnels; each tunnel is a label.
#[derive(Debug)]
struct TunnelCollector {
    counters: Counters,
}

impl Collector for TunnelCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let reports = self.counters.read();
        let mut names: Vec<&Metric> = Vec::new();
        for metric in reports.iter().flat_map(|report| &report.metrics) {
            if !names.iter().any(|known| known.name == metric.name) {
                names.push(metric);
            }
        }
        for family in names {
            let kind = match family.kind {
                MetricKind::Counter => prometheus_client::metrics::MetricType::Counter,
                MetricKind::Gauge => prometheus_client::metrics::MetricType::Gauge,
            };
            let mut metrics = encoder.encode_descriptor(family.name, family.help, None, kind)?;
            for report in &reports {
                let labels = [("tunnel", report.tunnel.as_str())];
                for metric in report.metrics.iter().filter(|metric| metric.name == family.name) {
                    let encoder = metrics.encode_family(&labels)?;
                    match family.kind {
                        MetricKind::Counter => ConstCounter::new(metric.value).encode(encoder)?,
                        MetricKind::Gauge => ConstGauge::new(metric.value).encode(encoder)?,
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::process::Report;

    /// Sends a request and returns the status and everything after the first line.
    async fn request(address: SocketAddr, line: &str) -> (String, String) {
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
        assert!(
            head.contains("application/openmetrics-text; version=1.0.0; charset=utf-8"),
            "{head}"
        );
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
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap();
        let error = MetricsServer::bind(address, Counters::default()).await.unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot serve metrics on {address}: ")));
    }
}
