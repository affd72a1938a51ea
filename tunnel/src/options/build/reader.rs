//! `Reader`: typed values of one tunnel's options, each with its range.

use std::fmt::Display;
use std::mem;
use std::str::FromStr;
use std::time::Duration;

use crate::options::error::OptionsError;
use crate::options::number::{parse_bool, parse_int};
use crate::options::table::{self, Opt, Role};
use crate::options::values::{Value, Values};
use crate::settings::AddressError;

#[derive(Debug)]
pub(super) struct Reader<'a> {
    role: Role,
    values: &'a Values,
    warnings: Vec<String>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(role: Role, values: &'a Values) -> Self {
        Self { role, values, warnings: Vec::new() }
    }

    pub(super) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    pub(super) fn into_warnings(self) -> Vec<String> {
        self.warnings
    }

    /// Whether the option was given.
    pub(super) fn is_given(&self, name: &str) -> bool {
        self.values.written(name).is_some()
    }

    /// Whether the value is `auto`.
    pub(super) fn is_auto(&self, name: &str) -> bool {
        self.value(name).text.as_str() == "auto"
    }

    pub(super) fn text(&self, name: &str) -> String {
        mem::take(&mut *self.value(name).text)
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, OptionsError> {
        let allowed = || self.refuse(name, "true or false".to_owned());
        parse_bool(&self.value(name).text).ok_or_else(allowed)
    }

    /// Reads an integer from `min` to `max`; `allowed` describes the range.
    pub(super) fn int(
        &self,
        name: &str,
        min: i64,
        max: i64,
        allowed: &str,
    ) -> Result<i64, OptionsError> {
        let number = parse_int(&self.value(name).text);
        let within = number.filter(|number| (min..=max).contains(number));
        within.ok_or_else(|| self.refuse(name, allowed.to_owned()))
    }

    /// Reads an integer whose type holds `min` to `max`.
    pub(super) fn number<T>(&self, name: &str, min: T, max: T) -> Result<T, OptionsError>
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

    pub(super) fn seconds(&self, name: &str, min: i64, max: i64) -> Result<Duration, OptionsError> {
        let seconds = self.int(name, min, max, &format!("{min} to {max} seconds"))?;
        Ok(Duration::from_secs(seconds.unsigned_abs()))
    }

    pub(super) fn choice<T: Copy>(
        &self,
        name: &str,
        choices: &[(&str, T)],
    ) -> Result<T, OptionsError> {
        let text = self.text(name);
        let found = choices.iter().find(|(choice, _)| *choice == text);
        found.map(|&(_, value)| value).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(choice, _)| *choice).collect();
            self.refuse(name, names.join(" or "))
        })
    }

    pub(super) fn address<T: FromStr<Err = AddressError>>(
        &self,
        name: &str,
    ) -> Result<T, OptionsError> {
        let value = self.value(name);
        let place = value.place;
        value.text.parse().map_err(|error| OptionsError::Address { place, error })
    }

    /// Returns the error of a value that is not allowed.
    pub(super) fn refuse(&self, name: &str, allowed: String) -> OptionsError {
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
