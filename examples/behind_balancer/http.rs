//! `/healthz` for a balancer and `/metrics` for Prometheus, over TCP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use kcpx::Endpoint;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use super::exporter::{self, Exporter};

/// Serves `/healthz` and `/metrics`.
pub(crate) struct Http {
    pub(crate) tcp: TcpListener,
    /// Whether the server drains.
    draining: Arc<AtomicBool>,
}

impl Http {
    pub(crate) async fn bind(addr: &str) -> Result<Self> {
        let tcp = TcpListener::bind(addr).await.with_context(|| {
            format!("cannot listen on {addr:?}: expected a free HOST:PORT, as in 127.0.0.1:9470")
        })?;
        Ok(Self { tcp, draining: Arc::default() })
    }

    /// Serves for as long as the process lives. The label `server` is `id`.
    ///
    /// The counters that show datagrams that belong to another server, after a change of the balancer:
    /// `dropped_no_connection`, `refused_no_listener` (they came to a server that drains), and
    /// `stateless_resets_sent` (their clients have learned it).
    pub(crate) fn serve(self, id: &str, endpoint: Endpoint) -> Arc<AtomicBool> {
        let label = ("server".into(), id.to_owned().into());
        let mut registry = Registry::with_prefix_and_labels("kcpx", std::iter::once(label));
        registry.register_collector(Box::new(Arc::new(Exporter::new(endpoint))));
        let (draining, registry) = (self.draining.clone(), Arc::new(registry));
        let health = async move || match self.draining.load(Ordering::Relaxed) {
            false => (StatusCode::OK, "serving\n"),
            true => (StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
        };
        let app = Router::new()
            .route("/healthz", get(health))
            .route("/metrics", get(async move || exporter::render(&registry)));
        let tcp = self.tcp;
        tokio::spawn(async move {
            if let Err(error) = axum::serve(tcp, app).await {
                eprintln!("/healthz and /metrics have ended: {error}");
            }
        });
        draining
    }
}
