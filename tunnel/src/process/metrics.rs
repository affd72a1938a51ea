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
