//! Settings from values: ranges, combinations, warnings.

use std::fmt::Display;
use std::mem;
use std::num::{NonZeroU8, NonZeroU64};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use kcpx::{
    AckPolicy, Algorithm, AutoRedundancy, CongestionControl, FecConfig, Redundancy, Timing,
};

use super::error::OptionsError;
use super::table::{self, OPTIONS, Opt, Role};
use super::values::{Value, Values, parse_bool, parse_int};
use crate::settings::{
    AddressError, ClientSettings, Common, ListenAddress, LocalAddress, Mux, Passphrase, Process,
    ServerSettings, Settings, SmuxVersion, SnmpLog, Tunnel,
};

/// kcptun's default key.
const DEFAULT_KEY: &str = "it's a secrect";
/// Largest datagram that kcptun receives, in bytes.
const KCPTUN_MAX_MTU: i64 = 1_500;
/// A day in seconds: the maximum of any time.
const DAY: i64 = 24 * 60 * 60;
/// Longest `keepalive` in seconds: a third of the maximum of kcpx's `dead_peer_timeout`, since a
/// session ends after three intervals.
const MAX_KEEPALIVE: i64 = DAY / 3;
/// Options of the process, which all tunnels share.
const OF_PROCESS: [&str; 5] = ["log", "snmplog", "snmpperiod", "metrics", "drain"];
/// Options that only mode `manual` uses.
const MANUAL: [&str; 4] = ["nodelay", "interval", "resend", "nc"];

/// Makes settings of the tunnels' values.
pub(super) fn settings(
    tunnels: &[(Role, Values)],
    warnings: &mut Vec<String>,
) -> Result<Settings, OptionsError> {
    let mut built = Vec::with_capacity(tunnels.len());
    for (role, values) in tunnels {
        let mut reader = Reader::new(*role, values);
        built.push(tunnel(*role, &mut reader)?);
        for warning in reader.into_warnings() {
            // Tunnels of one file often cause the same warnings.
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
    }
    let mut shared = Values::default();
    for (_, values) in tunnels {
        for option in OPTIONS.iter().filter(|option| OF_PROCESS.contains(&option.name)) {
            let Some(value) = values.written(option.name) else { continue };
            if shared.written(option.name).is_some_and(|other| other.text != value.text) {
                return Err(OptionsError::Differs(option.name));
            }
            shared.set(option, value.text.as_str(), value.place.clone());
        }
    }
    let mut reader = Reader::new(tunnels.first().map_or(Role::Client, |tunnel| tunnel.0), &shared);
    let process = process(&mut reader)?;
    warnings.extend(reader.into_warnings());
    Ok(Settings { tunnels: built, process })
}

fn tunnel(role: Role, reader: &mut Reader<'_>) -> Result<Tunnel, OptionsError> {
    not_supported(reader)?;
    let common = common(reader)?;
    // Limits across options, such as header bytes within the MTU.
    common.config()?;
    let tunnel = match role {
        Role::Client => Tunnel::Client(client(reader, common)?),
        Role::Server => Tunnel::Server(server(reader, common)?),
    };
    Ok(tunnel)
}

/// Rejects options of kcptun that are not supported, if they are on.
fn not_supported(reader: &mut Reader<'_>) -> Result<(), OptionsError> {
    for (name, instead) in [
        ("QPP", "use --crypt aes-128-gcm on both sides"),
        ("tcp", "use udp2raw or phantun in front"),
    ] {
        if reader.flag(name)? {
            return Err(OptionsError::NotSupported { name, instead });
        }
    }
    if reader.flag("pprof")? {
        reader.warn("pprof is ignored: use --metrics".to_owned());
    }
    reader.int("QPPCount", i64::MIN, i64::MAX, "an integer").map(|_| ())
}

fn client(reader: &mut Reader<'_>, common: Common) -> Result<ClientSettings, OptionsError> {
    let listen: LocalAddress = reader.address("localaddr")?;
    if let LocalAddress::Tcp { host, .. } = &listen
        && ["", "0.0.0.0", "::"].contains(&host.as_str())
    {
        reader.warn(format!(
            "localaddr {listen} accepts connections on all addresses of this host: write \
             127.0.0.1:PORT for this host alone"
        ));
    }
    let auto_expire = reader.seconds("autoexpire", 0, DAY)?;
    let scavenge_ttl = reader.int("scavengettl", -1, DAY, "-1 to 86400 seconds")?;
    Ok(ClientSettings {
        listen,
        remote: reader.address("remoteaddr")?,
        sessions: reader.number("conn", 1, u16::MAX)?,
        auto_expire: (!auto_expire.is_zero()).then_some(auto_expire),
        scavenge_ttl: u64::try_from(scavenge_ttl).ok().map(Duration::from_secs),
        compression: !reader.flag("nocomp")?,
        smux_version: smux_version(reader.int("smuxver", 1, 2, "1 or 2")?),
        common,
    })
}

fn server(reader: &Reader<'_>, common: Common) -> Result<ServerSettings, OptionsError> {
    let compression = if reader.is_auto("nocomp") { None } else { Some(!reader.flag("nocomp")?) };
    let smux_version = if reader.is_auto("smuxver") {
        None
    } else {
        Some(smux_version(reader.int("smuxver", 1, 2, "1, 2 or auto")?))
    };
    let listen: ListenAddress = reader.address("listen")?;
    Ok(ServerSettings {
        listen,
        target: reader.address("target")?,
        compression,
        smux_version,
        common,
    })
}

fn smux_version(number: i64) -> SmuxVersion {
    if number == 1 { SmuxVersion::V1 } else { SmuxVersion::V2 }
}

fn common(reader: &mut Reader<'_>) -> Result<Common, OptionsError> {
    let key = Passphrase::new(reader.text("key"));
    if key.as_str() == DEFAULT_KEY {
        reader.warn(
            "the key is kcptun's default, which is public: set KCPTUN_KEY or --key on both sides"
                .to_owned(),
        );
    }
    if key.as_str().is_empty() {
        reader.warn("the key is empty: set KCPTUN_KEY or --key on both sides".to_owned());
    }
    let smux_buffer = reader.number("smuxbuf", 1, i32::MAX as u32)?;
    let stream_buffer = reader.number("streambuf", 1, i32::MAX as u32)?;
    if stream_buffer > smux_buffer {
        return Err(reader.refuse("streambuf", format!("at most smuxbuf, {smux_buffer} bytes")));
    }
    let rate_limit = reader.int("ratelimit", i64::MIN, i64::MAX, "an integer")?;
    let algorithm = algorithm(reader)?;
    let (timing, congestion_control) = timing(reader)?;
    Ok(Common {
        key,
        algorithm,
        timing,
        congestion_control,
        mtu: mtu(reader)?,
        rate_limit: u64::try_from(rate_limit).ok().and_then(NonZeroU64::new),
        send_window: reader.number("sndwnd", 1, u16::MAX)?,
        recv_window: reader.number("rcvwnd", 1, u16::MAX)?,
        redundancy: redundancy(reader)?,
        dscp: reader.number("dscp", 0, 63u8)?,
        ack_policy: match reader.flag("acknodelay")? {
            true => AckPolicy::Immediate,
            // kcptun's behaviour, on request.
            false if reader.is_given("acknodelay") => AckPolicy::Interval,
            false => AckPolicy::PerBatch,
        },
        socket_buffer: reader.number("sockbuf", 1, 1usize << 30)?,
        mux: reader.choice("mux", &[("smux", Mux::Smux), ("none", Mux::None)])?,
        frame_size: reader.number("framesize", 1, u16::MAX)?,
        smux_buffer,
        stream_buffer,
        keepalive: reader.seconds("keepalive", 1, MAX_KEEPALIVE)?,
        close_wait: if reader.is_given("closewait") {
            Some(reader.seconds("closewait", 0, DAY)?)
        } else {
            None
        },
        half_close_timeout: reader.seconds("halfclosetimeout", 1, DAY)?,
        quiet: reader.flag("quiet")?,
    })
}

fn algorithm(reader: &mut Reader<'_>) -> Result<Algorithm, OptionsError> {
    let name = reader.text("crypt");
    let algorithm = Algorithm::from_name(&name).map_err(|_| {
        let names: Vec<_> = Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect();
        reader.refuse("crypt", format!("one of aes, {}", names.join(", ")))
    })?;
    if algorithm.key_len() > 0 && !algorithm.is_aead() {
        reader.warn(format!(
            "crypt {name} accepts packets that were altered on the path, as kcptun does: set --crypt \
             aes-128-gcm on both sides"
        ));
    }
    Ok(algorithm)
}

fn mtu(reader: &mut Reader<'_>) -> Result<u16, OptionsError> {
    let mtu = reader.number("mtu", 50, 65_507u16)?;
    if i64::from(mtu) > KCPTUN_MAX_MTU {
        reader.warn(format!("mtu {mtu}: kcptun receives at most {KCPTUN_MAX_MTU} bytes"));
    }
    Ok(mtu)
}

/// With `auto`, other implementations get the layout: every kcptun decodes FEC.
fn redundancy(reader: &Reader<'_>) -> Result<Redundancy, OptionsError> {
    let fec = fec(reader)?;
    if !reader.choice("redundancy", &[("off", false), ("auto", true)])? {
        return Ok(fec.map_or(Redundancy::Off, Redundancy::Fec));
    }
    let auto = AutoRedundancy::new();
    Ok(Redundancy::Auto(fec.map_or(auto, |fec| auto.stock(fec))))
}

fn fec(reader: &Reader<'_>) -> Result<Option<FecConfig>, OptionsError> {
    let data = reader.number("datashard", 0, 255u8)?;
    let parity = reader.number("parityshard", 0, 255u8)?;
    if data == 0 || parity == 0 {
        return Ok(None);
    }
    let layout = FecConfig::new(data.into(), parity.into());
    let most = 256 - u16::from(data);
    layout.map(Some).map_err(|_| {
        reader.refuse("parityshard", format!("at most {most} with {data} data packets"))
    })
}

fn timing(reader: &mut Reader<'_>) -> Result<(Timing, CongestionControl), OptionsError> {
    let mode = reader.text("mode");
    if mode == "manual" {
        return manual_timing(reader);
    }
    let preset = mode.parse().map_err(|_| {
        let allowed = "normal, fast, fast2, fast3, or manual with nodelay, interval, resend and nc";
        reader.refuse("mode", allowed.to_owned())
    })?;
    let unused: Vec<_> = MANUAL.into_iter().filter(|name| reader.is_given(name)).collect();
    if !unused.is_empty() {
        let unused = unused.join(", ");
        reader.warn(format!("{unused} ignored: mode {mode} sets them, use mode manual"));
    }
    Ok((preset, CongestionControl::Bbr))
}

fn manual_timing(reader: &mut Reader<'_>) -> Result<(Timing, CongestionControl), OptionsError> {
    let any = (i64::MIN, i64::MAX, "an integer");
    let nodelay = reader.int("nodelay", any.0, any.1, any.2)? > 0;
    let interval = reader.int("interval", any.0, any.1, any.2)?;
    // As kcp-go does.
    let within = interval.clamp(10, 5_000);
    if within != interval {
        reader.warn(format!("interval {interval} is outside 10 to 5000 ms: {within} is used"));
    }
    let resend: u8 = reader.number("resend", 0, u8::MAX)?;
    let congestion = match reader.int("nc", any.0, any.1, any.2)? {
        1 => CongestionControl::Bbr,
        _ => CongestionControl::Reno,
    };
    let interval = Duration::from_millis(within.unsigned_abs());
    Ok((Timing::new(nodelay, interval, NonZeroU8::new(resend))?, congestion))
}

fn process(reader: &mut Reader<'_>) -> Result<Process, OptionsError> {
    let path = |text: String| (!text.is_empty()).then(|| PathBuf::from(text));
    let period = reader.seconds("snmpperiod", 0, DAY)?;
    let snmp = Some(reader.text("snmplog")).filter(|path| !path.is_empty() && !period.is_zero());
    let metrics = match reader.text("metrics") {
        text if text.is_empty() => None,
        text => {
            let address: Result<std::net::SocketAddr, _> = text.parse();
            let allowed = "address:port, such as 127.0.0.1:9464".to_owned();
            Some(address.map_err(|_| reader.refuse("metrics", allowed))?)
        }
    };
    if let Some(address) = metrics
        && !address.ip().is_loopback()
    {
        reader.warn(format!("metrics {address} is reachable from other hosts"));
    }
    Ok(Process {
        log: path(reader.text("log")),
        snmp: snmp.map(|path| SnmpLog { path, period }),
        metrics,
        drain: reader.seconds("drain", 0, DAY)?,
    })
}

#[derive(Debug)]
/// Typed values of one tunnel's options, each with its range; collects warnings.
struct Reader<'a> {
    role: Role,
    values: &'a Values,
    warnings: Vec<String>,
}

impl<'a> Reader<'a> {
    fn new(role: Role, values: &'a Values) -> Self {
        Self { role, values, warnings: Vec::new() }
    }

    fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    fn into_warnings(self) -> Vec<String> {
        self.warnings
    }

    /// Whether the option was given.
    fn is_given(&self, name: &str) -> bool {
        self.values.written(name).is_some()
    }

    /// Whether the value is `auto`.
    fn is_auto(&self, name: &str) -> bool {
        self.value(name).text.as_str() == "auto"
    }

    fn text(&self, name: &str) -> String {
        mem::take(&mut *self.value(name).text)
    }

    fn flag(&self, name: &str) -> Result<bool, OptionsError> {
        let allowed = || self.refuse(name, "true or false".to_owned());
        parse_bool(&self.value(name).text).ok_or_else(allowed)
    }

    /// Reads an integer from `min` to `max`; `allowed` describes the range.
    fn int(&self, name: &str, min: i64, max: i64, allowed: &str) -> Result<i64, OptionsError> {
        let number = parse_int(&self.value(name).text);
        let within = number.filter(|number| (min..=max).contains(number));
        within.ok_or_else(|| self.refuse(name, allowed.to_owned()))
    }

    /// Reads an integer from `min` to `max`, the range of its type.
    fn number<T>(&self, name: &str, min: T, max: T) -> Result<T, OptionsError>
    where
        T: TryFrom<i64> + PartialOrd + Display + Copy,
    {
        let number = parse_int(&self.value(name).text).and_then(|number| T::try_from(number).ok());
        let within = number.filter(|number| *number >= min && *number <= max);
        within.ok_or_else(|| {
            let unit = self.option(name).map_or("", |option| option.unit).to_lowercase();
            let unit = if unit == "number" { String::new() } else { format!(" {unit}") };
            self.refuse(name, format!("{min} to {max}{unit}"))
        })
    }

    fn seconds(&self, name: &str, min: i64, max: i64) -> Result<Duration, OptionsError> {
        let seconds = self.int(name, min, max, &format!("{min} to {max} seconds"))?;
        Ok(Duration::from_secs(seconds.unsigned_abs()))
    }

    fn choice<T: Copy>(&self, name: &str, choices: &[(&str, T)]) -> Result<T, OptionsError> {
        let text = self.text(name);
        let found = choices.iter().find(|(choice, _)| *choice == text);
        found.map(|&(_, value)| value).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(choice, _)| *choice).collect();
            self.refuse(name, names.join(" or "))
        })
    }

    fn address<T: FromStr<Err = AddressError>>(&self, name: &str) -> Result<T, OptionsError> {
        let value = self.value(name);
        let place = value.place;
        value.text.parse().map_err(|error| OptionsError::Address { place, error })
    }

    /// Returns the error of a value that is not allowed.
    fn refuse(&self, name: &str, allowed: String) -> OptionsError {
        let (text, place) = (self.text(name), self.value(name).place);
        let value = if text.is_empty() { "\"\"".to_owned() } else { text };
        OptionsError::Value { place, value, allowed }
    }

    fn option(&self, name: &str) -> Option<&'static Opt> {
        table::find(name, Some(self.role))
    }

    fn value(&self, name: &str) -> Value {
        // `build` reads only options of the table, which a test checks for both roles.
        let option = self.option(name).expect("an option of the role");
        self.values.value(option, self.role)
    }
}
