//! Values of options as text, each with its source; stronger sources win.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use zeroize::Zeroizing;

use super::table::{Opt, Role};

/// Source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// The default of this option.
    Default(&'static str),
    /// An environment variable.
    Variable(&'static str),
    /// This option on the command line.
    CommandLine(&'static str),
    /// This option in SS_PLUGIN_OPTIONS.
    PluginOptions(&'static str),
    /// This option in a file.
    File(&'static str, PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default(name) | Self::CommandLine(name) if name.len() == 1 => {
                write!(f, "-{name}")
            }
            Self::Default(name) | Self::CommandLine(name) => write!(f, "--{name}"),
            Self::Variable(name) => f.write_str(name),
            Self::PluginOptions(name) => write!(f, "{name} in SS_PLUGIN_OPTIONS"),
            Self::File(name, path) => write!(f, "{name:?} in {}", path.display()),
        }
    }
}

/// The given value of each option of a tunnel, by name. `Debug` does not show the key.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Values {
    values: BTreeMap<&'static str, Value>,
}

/// One value. Without `Debug` and wiped on drop, since it may be the key.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) text: Zeroizing<String>,
    pub(super) place: Place,
}

impl Values {
    /// Sets a value, replacing an earlier one.
    pub(super) fn set(&mut self, option: &Opt, text: impl Into<String>, place: Place) {
        self.values.insert(option.name, Value { text: Zeroizing::new(text.into()), place });
    }

    /// Adds the values of `stronger`.
    pub(super) fn override_with(&mut self, stronger: Self) {
        self.values.extend(stronger.values);
    }

    /// Replaces the option's given value by the one in `other`, which may be none.
    pub(super) fn replace_from(&mut self, other: &Self, name: &'static str) {
        match other.values.get(name) {
            Some(value) => drop(self.values.insert(name, value.clone())),
            None => drop(self.values.remove(name)),
        }
    }

    /// Returns the given value of the option.
    pub(super) fn written(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// Returns the value, or the default of the role.
    pub(super) fn value(&self, option: &Opt, role: Role) -> Value {
        self.written(option.name).cloned().unwrap_or_else(|| Value {
            text: option.default_for(role).to_owned().into(),
            place: Place::Default(option.name),
        })
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.values.iter().map(|(&name, value)| {
            let text = if name == "key" { "(not shown)" } else { value.text.as_str() };
            (name, (text, &value.place))
        });
        f.debug_map().entries(shown).finish()
    }
}
