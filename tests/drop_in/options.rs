//! Options and addresses.

use std::time::Duration;

use tokio::io::AsyncWriteExt;

use crate::support::{Observation, behaviours, pair, pair_with, read, rest};
use crate::transport::{Listener, Stream, Transport};

behaviours!(
    nodelay_by_default,
    nodelay_can_be_set,
    written_without_nodelay,
    linger_by_default,
    linger_can_be_set,
    linger_taken_back,
    address_of_the_listener,
    address_of_the_client,
    addresses_on_both_ends,
);

async fn nodelay_by_default<T: Transport>() -> Observation {
    let (client, server) = pair::<T>().await;
    format!("{}, {}", client.nodelay().unwrap(), server.nodelay().unwrap())
}

async fn nodelay_can_be_set<T: Transport>() -> Observation {
    let (client, _server) = pair::<T>().await;
    client.set_nodelay(true).unwrap();
    let on = client.nodelay().unwrap();
    client.set_nodelay(false).unwrap();
    format!("{on}, {}", client.as_ref().nodelay().unwrap())
}

async fn written_without_nodelay<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    client.set_nodelay(false).unwrap();
    // Without a flush the bytes may be delayed, but arrive.
    client.write_all(b"here").await.unwrap();
    read(&mut server).await
}

async fn linger_by_default<T: Transport>() -> Observation {
    let (client, server) = pair::<T>().await;
    format!("{:?}, {:?}", client.linger().unwrap(), server.linger().unwrap())
}

async fn linger_can_be_set<T: Transport>() -> Observation {
    let (client, _server) = pair::<T>().await;
    client.set_linger(Some(Duration::from_secs(5))).unwrap();
    let set = client.linger().unwrap();
    client.set_zero_linger().unwrap();
    let zero = client.linger().unwrap();
    client.set_linger(None).unwrap();
    format!("{set:?}, {zero:?}, {:?}", client.linger().unwrap())
}

/// The last value applies at the drop.
async fn linger_taken_back<T: Transport>() -> Observation {
    let (mut client, mut server) = pair::<T>().await;
    client.set_zero_linger().unwrap();
    client.write_all(b"bye").await.unwrap();
    client.set_linger(None).unwrap();
    drop(client);
    rest(&mut server, b"bye").await
}

async fn address_of_the_listener<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let addr = listener.local_addr().unwrap();
    let taken = T::Listener::bind_to(addr).await;
    let taken = taken.map_or_else(|error| format!("{:?}", error.kind()), |_| "free".to_owned());
    format!("{}, port {}, {taken}", addr.ip(), if addr.port() == 0 { "0" } else { "given" })
}

async fn address_of_the_client<T: Transport>() -> Observation {
    let (client, _server) = pair::<T>().await;
    client.local_addr().unwrap().ip().to_string()
}

async fn addresses_on_both_ends<T: Transport>() -> Observation {
    let listener = T::bind().await;
    let (client, server) = pair_with::<T>(&listener).await;
    let addr = listener.local_addr().unwrap();
    let target = client.peer_addr().unwrap() == addr && server.local_addr().unwrap() == addr;
    let ports = client.local_addr().unwrap().port() == server.peer_addr().unwrap().port();
    format!("target {target}, ports {ports}, seen as {}", server.peer_addr().unwrap().ip())
}
