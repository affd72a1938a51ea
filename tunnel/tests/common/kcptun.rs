//! The programs of kcptun in the folder `KCPX_KCPTUN_DIR`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;

use kcpx_skip::programs_in;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// Folder with `kcptun-client` and `kcptun-server`; without it reports a skip and returns `None`.
pub fn folder() -> Option<PathBuf> {
    programs_in("KCPX_KCPTUN_DIR")
}

/// A recently free UDP and TCP port.
pub fn free_port() -> u16 {
    loop {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        if std::net::UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A running program; killed on drop.
pub struct Kcptun(pub Child);

impl Kcptun {
    pub fn server(port: u16, target: SocketAddr, options: &[&str]) -> Self {
        let listen = format!("127.0.0.1:{port}");
        Self::start("kcptun-server", &["-l", &listen, "-t", &target.to_string()], options)
    }

    /// Starts a client on its own port; returns once it accepts connections.
    pub async fn client(remote: SocketAddr, options: &[&str]) -> (Self, SocketAddr) {
        let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let addresses = ["-l", &addr.to_string(), "-r", &remote.to_string()];
        let program = Self::start("kcptun-client", &addresses, options);
        super::within("kcptun-client", async {
            // Closed at once: it opens a session, and carries no bytes.
            while TcpStream::connect(addr).await.is_err() {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        })
        .await;
        (program, addr)
    }

    fn start(program: &str, addresses: &[&str], options: &[&str]) -> Self {
        let folder = std::env::var_os("KCPX_KCPTUN_DIR").map(PathBuf::from).unwrap();
        let program = folder.join(program);
        let mut command = Command::new(&program);
        command.args(addresses).args(options).env_remove("KCPTUN_KEY");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.kill_on_drop(true).spawn();
        Self(child.unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display())))
    }
}
