//! A socket that reaches a server, whether its address is of IPv4 or IPv6.

#![allow(dead_code, reason = "each program uses a part of it")]

use std::net::SocketAddr;

use anyhow::{Context, Result};
use http::Uri;
use kcpx::{Config, Endpoint};
use tokio::net::lookup_host;

/// An endpoint of the server's address family.
pub(crate) async fn bind_for(server: SocketAddr, config: Config) -> Result<Endpoint> {
    let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    Ok(Endpoint::bind_with(any, config).await?)
}

/// The same for the server of a URL, http://HOST:PORT.
pub(crate) async fn bind_for_url(url: &Uri, config: Config) -> Result<Endpoint> {
    let host = url.host().unwrap_or_default();
    // URLs enclose IPv6 addresses in brackets, lookups do not.
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let found = lookup_host((bare, url.port_u16().unwrap_or(80))).await;
    let server = found.ok().and_then(|mut servers| servers.next());
    let server = server.with_context(|| {
        format!("cannot find the host of {url}: write http://HOST:PORT with a known host")
    })?;
    bind_for(server, config).await
}
