//! Runs tshark with the dissector.

#[cfg(unix)]
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
#[cfg(unix)]
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use kcpx_skip::skip;

use crate::capture::Capture;

/// Separates the values of a field that a datagram has several times.
const AGGREGATOR: char = '|';

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Number of the user and group without rights on Linux.
#[cfg(unix)]
const NOBODY: u32 = 65_534;

/// tshark with folders of its own, so that no installed dissector is loaded as well.
#[derive(Debug)]
pub(crate) struct Tshark {
    home: PathBuf,
    /// Whether `home` has the dissector where tshark finds it.
    is_installed: bool,
    decode_as: bool,
}

impl Drop for Tshark {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

impl Tshark {
    /// `None`, reported as skipped, if tshark is missing.
    pub(crate) fn find() -> Option<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        if Command::new("tshark").arg("--version").output().is_err() {
            skip("tshark");
            return None;
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // Anybody may read there, and in the repository perhaps not.
        let name = format!("kcpx-wireshark-{}-{number}", std::process::id());
        let home = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&home).unwrap();
        readable(&home, 0o755);
        let script = home.join("kcp.lua");
        std::fs::copy(repository().join("wireshark/kcp.lua"), &script).unwrap();
        readable(&script, 0o644);
        Some(Self { home, is_installed: false, decode_as: false })
    }

    /// With "Decode As" for the port of the server.
    pub(crate) fn decode_as(mut self) -> Self {
        self.decode_as = true;
        self
    }

    /// With the dissector that a command of the README installs, in the home folder that it is run with.
    pub(crate) fn installed(mut self, command: &str) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-euc", command]).current_dir(repository()).env("HOME", &self.home);
        let status = shell.status().unwrap();
        assert!(status.success(), "{command}: {status}");
        self.is_installed = true;
        self
    }

    fn command(&self) -> Command {
        let mut command = Command::new("tshark");
        command.env("HOME", &self.home).current_dir(&self.home);
        for variable in ["XDG_CONFIG_HOME", "WIRESHARK_CONFIG_DIR", "WIRESHARK_PLUGIN_DIR"] {
            command.env_remove(variable);
        }
        // Wireshark 4.4 loads no scripts as root.
        #[cfg(unix)]
        if std::fs::metadata(&self.home).unwrap().uid() == 0 {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    fn run(&self, capture: &Capture, arguments: &[&str]) -> String {
        let file = self.home.join("capture.pcap");
        capture.write(&file);
        readable(&file, 0o644);
        let mut command = self.command();
        if !self.is_installed {
            command.args(["-X", "lua_script:kcp.lua"]);
        }
        if self.decode_as {
            command.arg("-d").arg(format!("udp.port=={},kcp", capture.ports[1]));
        }
        let output = command.arg("-n").arg("-r").arg(&file).args(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {errors}", output.status);
        assert!(!errors.contains("Lua"), "{errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The fields of each datagram.
    pub(crate) fn rows(&self, capture: &Capture, fields: &[&'static str]) -> Vec<Row> {
        self.rows_with(capture, &[], fields)
    }

    /// The fields of each datagram, with further options.
    pub(crate) fn rows_with(
        &self,
        capture: &Capture,
        options: &[&str],
        fields: &[&'static str],
    ) -> Vec<Row> {
        let mut names = vec!["frame.protocols", "_ws.expert.message", "_ws.col.Info"];
        names.extend(fields);
        let aggregator = format!("aggregator={AGGREGATOR}");
        let mut arguments = vec!["-T", "fields", "-E", "separator=/t", "-E", &aggregator];
        arguments.extend(options);
        for name in &names {
            arguments.extend(["-e", name]);
        }
        let text = self.run(capture, &arguments);
        let row = |line: &str| {
            let values = line.split('\t').map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(values.len(), names.len(), "{line}");
            Row { names: names.clone(), values }
        };
        let rows = text.lines().map(row).collect::<Vec<_>>();
        assert_eq!(rows.len(), capture.datagrams.len());
        for row in &rows {
            assert!(!row.expert().contains("Lua Error"), "{}", row.expert());
        }
        rows
    }

    /// All that is shown of all datagrams.
    pub(crate) fn details(&self, capture: &Capture) -> String {
        let text = self.run(capture, &["-V"]);
        assert!(!text.contains("Lua Error"), "{text}");
        text
    }
}

/// Lets another user read a file or folder of ours.
#[cfg(unix)]
fn readable(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[cfg(not(unix))]
fn readable(_: &Path, _: u32) {}

/// What a datagram has of the fields.
#[derive(Debug)]
pub(crate) struct Row {
    names: Vec<&'static str>,
    values: Vec<String>,
}

impl Row {
    /// The values of a field, in order.
    pub(crate) fn all(&self, field: &str) -> Vec<&str> {
        let place = self.names.iter().position(|name| *name == field);
        let text = &self.values[place.unwrap_or_else(|| panic!("{field} was not asked for"))];
        if text.is_empty() { Vec::new() } else { text.split(AGGREGATOR).collect() }
    }

    pub(crate) fn numbers(&self, field: &str) -> Vec<u32> {
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).unwrap(),
            None => text.parse().unwrap(),
        };
        self.all(field).into_iter().map(number).collect()
    }

    pub(crate) fn seconds(&self, field: &str) -> Vec<f64> {
        self.all(field).into_iter().map(|text| text.parse().unwrap()).collect()
    }

    pub(crate) fn has(&self, field: &str) -> bool {
        !self.all(field).is_empty()
    }

    pub(crate) fn expert(&self) -> String {
        self.all("_ws.expert.message").join(", ")
    }

    /// The info column without the ports.
    pub(crate) fn info(&self) -> String {
        let info = self.all("_ws.col.Info").join("|");
        info.split(' ').skip(3).collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn is_kcp(&self) -> bool {
        self.all("frame.protocols").join(":").split(':').any(|protocol| protocol == "kcp")
    }

    pub(crate) fn assert_well_formed(&self) {
        assert!(self.is_kcp(), "{self:?}");
        for word in
            ["Malformed", "malformed", "Unknown", "Bytes behind", "left", "Not plain", "several"]
        {
            assert!(!self.expert().contains(word), "{self:?}");
        }
    }
}
