//! tshark with the dissector of `wireshark/`.

#[cfg(unix)]
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
#[cfg(unix)]
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, ensure};
use kcpx_skip::skip;

/// Number of the user and group without rights on Linux.
#[cfg(unix)]
const NOBODY: u32 = 65_534;

/// tshark with folders of its own, so that no installed dissector is loaded as well.
#[derive(Debug)]
pub struct Tshark {
    home: PathBuf,
    /// Whether `home` has the dissector where tshark finds it.
    is_installed: bool,
}

impl Drop for Tshark {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

impl Tshark {
    /// `None`, reported as skipped, if tshark is missing.
    ///
    /// # Errors
    ///
    /// When a folder for temporary files cannot be written.
    pub fn find() -> Result<Option<Self>> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        if Command::new("tshark").arg("--version").output().is_err() {
            skip("tshark");
            return Ok(None);
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // Anybody may read there, and in the repository perhaps not.
        let name = format!("kcpx-wireshark-{}-{number}", std::process::id());
        let home = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&home)?;
        readable(&home, 0o755)?;
        let script = home.join("kcp.lua");
        std::fs::copy(repository().join("wireshark/kcp.lua"), &script)?;
        readable(&script, 0o644)?;
        Ok(Some(Self { home, is_installed: false }))
    }

    /// With the dissector that a shell command installs, which is run in the repository with the home folder of
    /// this tshark.
    ///
    /// # Errors
    ///
    /// When the command fails.
    pub fn installed(mut self, command: &str) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-euc", command]).current_dir(repository()).env("HOME", &self.home);
        let status = shell.status()?;
        ensure!(status.success(), "{command}: {status}");
        self.is_installed = true;
        Ok(self)
    }

    /// What tshark prints of a capture file.
    ///
    /// # Errors
    ///
    /// When tshark reports an error, or the dissector has one.
    pub fn read(&self, capture: &[u8], arguments: &[&str]) -> Result<String> {
        let file = self.home.join("capture.pcap");
        std::fs::write(&file, capture)?;
        readable(&file, 0o644)?;
        let mut command = Command::new("tshark");
        command.env("HOME", &self.home).current_dir(&self.home);
        for variable in ["XDG_CONFIG_HOME", "WIRESHARK_CONFIG_DIR", "WIRESHARK_PLUGIN_DIR"] {
            command.env_remove(variable);
        }
        // Wireshark 4.4 loads no scripts as root.
        #[cfg(unix)]
        if std::fs::metadata(&self.home)?.uid() == 0 {
            command.uid(NOBODY).gid(NOBODY);
        }
        if !self.is_installed {
            command.args(["-X", "lua_script:kcp.lua"]);
        }
        let output = command.arg("-n").arg("-r").arg(&file).args(arguments).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {errors}", output.status);
        ensure!(!errors.contains("Lua"), "{errors}");
        let text = String::from_utf8(output.stdout).context("tshark prints UTF-8")?;
        ensure!(!text.contains("Lua Error"), "{text}");
        Ok(text)
    }
}

/// The folder of the repository.
#[must_use]
pub fn repository() -> PathBuf {
    let member = Path::new(env!("CARGO_MANIFEST_DIR"));
    member.parent().unwrap_or(member).to_owned()
}

/// Lets another user read a file or folder of ours.
#[cfg(unix)]
fn readable(path: &Path, mode: u32) -> Result<()> {
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?)
}

#[cfg(not(unix))]
fn readable(_: &Path, _: u32) -> Result<()> {
    Ok(())
}
