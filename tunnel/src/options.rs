//! Options of kcptun: the command line in Go's forms, environment variables, JSON files, SIP003.
//!
//! [`Invocation`] is what a process was started with; [`Invocation::load`] turns it into
//! [`Settings`]. Later sources override earlier ones: defaults, `KCPTUN_KEY`, the command line,
//! `SS_PLUGIN_OPTIONS`, the file of `-c`; SIP003 addresses override everything.

mod args;
mod build;
mod changes;
mod error;
#[cfg(any(test, feature = "_testkit"))]
pub mod fuzz;
mod json;
mod plugin;
mod table;
#[cfg(test)]
mod tests;
mod values;

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

pub use self::error::OptionsError;
use self::json::Object;
use self::plugin::Plugin;
pub use self::table::Role;
use self::values::Values;
pub use self::values::{Environment, Place};
use crate::settings::Settings;

/// Arguments and environment of a process. SIGHUP loads the same invocation again. `Debug` shows
/// only the program's name: arguments and variables may contain the key.
///
/// ```
/// use kcpx_tunnel::options::{Environment, Invocation};
/// use kcpx_tunnel::settings::Tunnel;
///
/// let argv = ["kcptun-server", "-l", ":4000", "-t=127.0.0.1:22", "-key", "a passphrase"];
/// let loaded = Invocation::new(argv, Environment::new()).load()?;
/// let Tunnel::Server(server) = &loaded.settings.tunnels[0] else { panic!("a client") };
/// assert_eq!(server.target.to_string(), "127.0.0.1:22");
/// # Ok::<(), kcpx_tunnel::options::OptionsError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Invocation {
    argv: Vec<OsString>,
    environment: Environment,
}

/// Settings, and warnings for the user. `Debug` does not show the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// One sentence for each setting that is allowed but probably a mistake.
    pub warnings: Vec<String>,
    /// The values behind the settings.
    tunnels: Vec<(Role, Values)>,
}

impl Invocation {
    /// Takes arguments, beginning with the program's name, and environment variables.
    pub fn new(
        argv: impl IntoIterator<Item = impl Into<OsString>>,
        environment: Environment,
    ) -> Self {
        Self { argv: argv.into_iter().map(Into::into).collect(), environment }
    }

    /// Returns the invocation of this process. Variables that are not UTF-8 are left out.
    #[must_use]
    pub fn of_process() -> Self {
        let variables = std::env::vars_os();
        let utf8 = variables.filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let environment = utf8.collect();
        Self::new(std::env::args_os(), environment)
    }

    /// Returns an environment variable.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str)
    }

    /// Reads the options, including the file of `-c`, and makes settings. Opens no socket.
    ///
    /// # Errors
    ///
    /// One sentence that says what is wrong and what to write instead. Help and version are
    /// [`OptionsError::CommandLine`] too.
    pub fn load(&self) -> Result<Loaded, OptionsError> {
        self.load_reading(|path| fs::read_to_string(path))
    }

    /// Loads with `read` in place of the file system.
    fn load_reading(
        &self,
        read: impl FnOnce(&Path) -> io::Result<String>,
    ) -> Result<Loaded, OptionsError> {
        let command_line = args::parse(&self.argv)?;
        let plugin = Plugin::from_environment(&self.environment, command_line.role)?;
        let role = plugin.as_ref().map_or(command_line.role, |plugin| plugin.role);
        let mut values = self.key_variable();
        values.override_with(command_line.values);
        let mut warnings = Vec::new();
        if let Some(plugin) = &plugin {
            values.override_with(plugin.options.clone());
            if !plugin.ignored.is_empty() {
                let names = plugin.ignored.join(", ");
                warnings.push(format!("SS_PLUGIN_OPTIONS: {names} ignored"));
            }
        }
        let objects = match values.written("c").filter(|value| !value.text.is_empty()) {
            Some(file) => {
                let path = Path::new(&file.text);
                let failed = |error| OptionsError::File { path: path.to_owned(), error };
                json::parse(&read(path).map_err(failed)?, path, role)?
            }
            None => vec![Object { role, ..Object::default() }],
        };
        warn_of_unknown_keys(&objects, &mut warnings);
        let mut tunnels = Vec::with_capacity(objects.len());
        for object in objects {
            // A plugin without a role is a client, like other plugins.
            let default = plugin.as_ref().map(|_| Role::Client);
            let role = object.role.or(default).ok_or(OptionsError::NoRole)?;
            let mut values = values.clone();
            values.override_with(object.values);
            if let Some(plugin) = &plugin {
                plugin.set_addresses(role, &mut values);
            }
            tunnels.push((role, values));
        }
        let settings = build::settings(&tunnels, &mut warnings)?;
        Ok(Loaded { settings, warnings, tunnels })
    }

    /// Reads `KCPTUN_KEY`, the only option with its own variable.
    fn key_variable(&self) -> Values {
        const NAME: &str = "KCPTUN_KEY";
        let mut values = Values::default();
        // As in kcptun, an empty variable is an empty key.
        let key = self.environment.get(NAME);
        if let (Some(key), Some(option)) = (key, table::find("key", None)) {
            values.set(option, key.as_str(), Place::Variable(NAME));
        }
        values
    }
}

impl fmt::Debug for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invocation").field("program", &self.argv.first()).finish_non_exhaustive()
    }
}

fn warn_of_unknown_keys(objects: &[Object], warnings: &mut Vec<String>) {
    let mut unknown: Vec<&str> =
        objects.iter().flat_map(|object| &object.unknown).map(String::as_str).collect();
    unknown.sort_unstable();
    unknown.dedup();
    if !unknown.is_empty() {
        warnings.push(format!("the file of -c has keys that are no options, ignored: {unknown:?}"));
    }
}
