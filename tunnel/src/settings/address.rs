//! Addresses as kcptun writes them: `host:port`, `host:min-max`, and paths of unix sockets.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

/// A TCP address, or the path of a unix socket: `localaddr` of a client and `target` of a server.
///
/// Text with a slash, or that ends with `.sock`, is a path.
///
/// ```
/// use kcpx_tunnel::settings::LocalAddress;
///
/// let tcp: LocalAddress = "[::1]:12948".parse()?;
/// assert_eq!(tcp, LocalAddress::Tcp { host: "::1".into(), port: 12948 });
/// let unix: LocalAddress = "/run/tunnel.sock".parse()?;
/// assert_eq!(unix, LocalAddress::Unix("/run/tunnel.sock".into()));
/// # Ok::<(), kcpx_tunnel::settings::AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalAddress {
    /// TCP.
    Tcp {
        /// Name or address, without brackets. Empty means all addresses when listening, and this
        /// host when connecting.
        host: String,
        /// Port.
        port: u16,
    },
    /// A unix socket.
    Unix(PathBuf),
}

/// The server of a client: a host and its ports. Each session takes one port.
///
/// ```
/// use kcpx_tunnel::settings::RemoteAddress;
///
/// let remote: RemoteAddress = "vps:29900-29910".parse()?;
/// assert_eq!((remote.host.as_str(), remote.ports), ("vps", 29900..=29910));
/// # Ok::<(), kcpx_tunnel::settings::AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// Name or address, without brackets. Empty means this host.
    pub host: String,
    /// Ports, 1 to 65,535.
    pub ports: RangeInclusive<u16>,
}

/// Listening address of a server: a host and its ports, each with a UDP socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// Name or address, without brackets. Empty means all addresses.
    pub host: String,
    /// Ports. A single port may be 0: the system then chooses one.
    pub ports: RangeInclusive<u16>,
}

/// Why an address is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// No colon before a port.
    #[error("{0:?} has no port: write host:port")]
    NoPort(String),
    /// A URL.
    #[error("{0:?} is a URL: write host:port")]
    Url(String),
    /// Neither a port after a colon nor a sign of a path.
    #[error("{0:?} has no port: write host:port, or ./{0} for a unix socket")]
    NoPortOrPath(String),
    /// The port is no number, or out of its range.
    #[error("{0:?} has a port outside {1}..=65535 or one that is not a number")]
    Port(String, u16),
    /// The last port is below the first.
    #[error("{0:?} has a port range that ends before it begins")]
    Range(String),
    /// An IPv6 address without brackets.
    #[error("{0:?} needs brackets around its IPv6 address: [address]:port")]
    Brackets(String),
    /// A host with brackets or blanks inside.
    #[error("{0:?} has a host that is neither a name nor an address")]
    Host(String),
    /// An empty text.
    #[error("the address is empty")]
    Empty,
}

impl FromStr for LocalAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.is_empty() {
            return Err(AddressError::Empty);
        }
        if !is_url(text) && (text.contains('/') || text.ends_with(".sock")) {
            return Ok(Self::Unix(PathBuf::from(text)));
        }
        if !text.contains(':') {
            return Err(AddressError::NoPortOrPath(text.to_owned()));
        }
        let (host, port) = split(text)?;
        Ok(Self::Tcp { host, port: parse_port(text, port, 0)? })
    }
}

impl FromStr for RemoteAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (host, ports) = split(text)?;
        Ok(Self { host, ports: parse_ports(text, ports, 1)? })
    }
}

impl FromStr for ListenAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (host, ports) = split(text)?;
        Ok(Self { host, ports: parse_ports(text, ports, 0)? })
    }
}

impl fmt::Display for LocalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } => write_address(f, host, &(*port..=*port)),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

impl fmt::Display for RemoteAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_address(f, &self.host, &self.ports)
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_address(f, &self.host, &self.ports)
    }
}

fn write_address(
    f: &mut fmt::Formatter<'_>,
    host: &str,
    ports: &RangeInclusive<u16>,
) -> fmt::Result {
    let (first, last) = (ports.start(), ports.end());
    if host.contains(':') { write!(f, "[{host}]:{first}") } else { write!(f, "{host}:{first}") }?;
    if first == last { Ok(()) } else { write!(f, "-{last}") }
}

/// Splits at the last colon; drops the brackets of an IPv6 address.
fn split(text: &str) -> Result<(String, &str), AddressError> {
    let (host, port) = split_unchecked(text)?;
    let is_odd = |char: char| char.is_whitespace() || char.is_control() || "[]/".contains(char);
    if host.contains(is_odd) {
        return Err(AddressError::Host(text.to_owned()));
    }
    Ok((host.to_owned(), port))
}

fn is_url(text: &str) -> bool {
    text.contains("://")
}

fn split_unchecked(text: &str) -> Result<(&str, &str), AddressError> {
    if text.is_empty() {
        return Err(AddressError::Empty);
    }
    if is_url(text) {
        return Err(AddressError::Url(text.to_owned()));
    }
    let no_port = || AddressError::NoPort(text.to_owned());
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(no_port)?;
        let port = rest.strip_prefix(':').ok_or_else(no_port)?;
        return Ok((host, port));
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(no_port)?;
    if host.contains(':') {
        return Err(AddressError::Brackets(text.to_owned()));
    }
    Ok((host, port))
}

fn parse_ports(text: &str, ports: &str, min: u16) -> Result<RangeInclusive<u16>, AddressError> {
    let Some((first, last)) = ports.split_once('-') else {
        let port = parse_port(text, ports, min)?;
        return Ok(port..=port);
    };
    let (first, last) = (parse_port(text, first, 1)?, parse_port(text, last, 1)?);
    if first > last { Err(AddressError::Range(text.to_owned())) } else { Ok(first..=last) }
}

fn parse_port(text: &str, port: &str, min: u16) -> Result<u16, AddressError> {
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = port.parse().ok().filter(|&port| digits && port >= min);
    parsed.ok_or_else(|| AddressError::Port(text.to_owned(), min))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(text: &str) -> Result<(String, RangeInclusive<u16>), AddressError> {
        text.parse().map(|RemoteAddress { host, ports }| (host, ports))
    }

    #[test]
    fn remote_address_with_a_range_of_ports_is_parsed() {
        for (text, host, ports) in [
            ("vps:29900", "vps", 29900..=29900),
            ("vps:1-65535", "vps", 1..=65535),
            ("192.0.2.1:4000-4000", "192.0.2.1", 4000..=4000),
            ("[2001:db8::1]:20-21", "2001:db8::1", 20..=21),
            (":29900", "", 29900..=29900),
        ] {
            assert_eq!(remote(text), Ok((host.to_owned(), ports)), "{text}");
            let parsed: RemoteAddress = text.parse().unwrap();
            let shown = parsed.to_string();
            assert_eq!(shown.parse(), Ok(parsed), "{shown}");
        }
    }

    #[test]
    fn malformed_remote_address_is_an_error_by_name() {
        type Make = fn(String) -> AddressError;
        let port: Make = |text| AddressError::Port(text, 1);
        for (text, error) in [
            ("vps", AddressError::NoPort as Make),
            ("[::1]", AddressError::NoPort),
            ("[::1", AddressError::NoPort),
            ("::1:29900", AddressError::Brackets),
            ("vps:", port),
            ("vps:0", port),
            ("vps:0-5", port),
            ("vps:65536", port),
            ("vps:+5", port),
            ("vps:http", port),
            ("vps:1-2-3", port),
            ("vps:30-20", AddressError::Range),
            ("[[]:1", AddressError::Host),
            ("a b:1", AddressError::Host),
            ("http://vps:1", AddressError::Url),
            ("", |_| AddressError::Empty),
        ] {
            assert_eq!(remote(text), Err(error(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn listen_address_may_have_port_zero_and_no_host() {
        let parsed: ListenAddress = ":0".parse().unwrap();
        assert_eq!(parsed, ListenAddress { host: String::new(), ports: 0..=0 });
        assert!("::0-5".parse::<ListenAddress>().is_err());
    }

    #[test]
    fn local_address_with_a_slash_or_sock_is_a_unix_path() {
        for text in ["/run/a.sock", "./a:1", "a.sock", "run/a:b"] {
            assert_eq!(text.parse(), Ok(LocalAddress::Unix(text.into())), "{text}");
        }
        let url = "tcp://127.0.0.1:12948";
        assert_eq!(url.parse::<LocalAddress>(), Err(AddressError::Url(url.into())));
        for (text, host) in [(":12948", ""), ("localhost:12948", "localhost"), ("[::]:12948", "::")]
        {
            let tcp = LocalAddress::Tcp { host: host.into(), port: 12948 };
            assert_eq!(text.parse(), Ok(tcp), "{text}");
        }
        assert_eq!("".parse::<LocalAddress>(), Err(AddressError::Empty));
        for text in ["nonsense", "127.0.0.1", "localhost"] {
            let error = text.parse::<LocalAddress>().unwrap_err();
            let sentence =
                format!("{text:?} has no port: write host:port, or ./{text} for a unix socket");
            assert_eq!(error.to_string(), sentence);
        }
    }
}
