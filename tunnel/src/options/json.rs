//! The file of `-c`: an object of options, or an array of objects, each one a tunnel.

use std::path::Path;

use serde_json::{Map, Value as Json};

use super::error::OptionsError;
use super::table::{self, Kind, Opt, Role};
use super::values::{Place, Values};

/// One object of the file.
#[derive(Debug, Default)]
pub(super) struct Object {
    pub(super) role: Option<Role>,
    pub(super) values: Values,
    /// Keys that are no options of its role.
    pub(super) unknown: Vec<String>,
}

/// Parses the text of a file. `role` is the default of its objects.
pub(super) fn parse(
    text: &str,
    path: &Path,
    role: Option<Role>,
) -> Result<Vec<Object>, OptionsError> {
    // A BOM, which some Windows editors write (RFC 8259 8.1).
    let json = serde_json::from_str(text.strip_prefix('\u{feff}').unwrap_or(text))
        .map_err(|error| OptionsError::Json { path: path.to_owned(), error })?;
    let wrong =
        |wrong: &str| OptionsError::Shape { path: path.to_owned(), wrong: wrong.to_owned() };
    let objects = match json {
        Json::Object(object) => vec![object],
        Json::Array(items) => {
            let objects = items.into_iter().map(|item| match item {
                Json::Object(object) => Ok(object),
                _ => Err(wrong("the array holds something else than objects")),
            });
            objects.collect::<Result<_, _>>()?
        }
        _ => return Err(wrong("the file holds neither an object nor an array of objects")),
    };
    if objects.is_empty() {
        return Err(wrong("the array is empty: each object in it is one tunnel"));
    }
    objects.into_iter().map(|object| parse_object(object, path, role)).collect()
}

fn parse_object(
    object: Map<String, Json>,
    path: &Path,
    role: Option<Role>,
) -> Result<Object, OptionsError> {
    let mut parsed = Object { role, ..Object::default() };
    let named = object.iter().find(|(key, _)| key.eq_ignore_ascii_case("role"));
    if let Some((_, name)) = named {
        let role = name.as_str().and_then(Role::from_name);
        let place = Place::File("role", path.to_owned());
        let shown = name.as_str().map_or_else(|| name.to_string(), str::to_owned);
        parsed.role = Some(role.ok_or(OptionsError::Role(shown, place))?);
    }
    for (key, json) in object {
        match table::find_key(&key, parsed.role) {
            Some(option) => {
                let place = Place::File(option.name, path.to_owned());
                // As in Go, null leaves the value unchanged.
                if let Some(text) = text_of(option, &json, &place)? {
                    parsed.values.set(option, text, place);
                }
            }
            None if key.eq_ignore_ascii_case("role") => {}
            None => parsed.unknown.push(key),
        }
    }
    Ok(parsed)
}

/// Returns the value as written on the command line.
fn text_of(option: &Opt, json: &Json, place: &Place) -> Result<Option<String>, OptionsError> {
    let text = match (option.kind, json) {
        (_, Json::Null) => return Ok(None),
        (Kind::Text, Json::String(text)) => text.clone(),
        (Kind::Flag, Json::Bool(flag)) => flag.to_string(),
        (Kind::Int, Json::Number(number)) if number.is_i64() => number.to_string(),
        // Options that a server can detect.
        (Kind::Flag | Kind::Int, Json::String(text)) if text == "auto" => text.clone(),
        (kind, json) => {
            let allowed = match kind {
                Kind::Text => "a string",
                Kind::Int => "an integer",
                Kind::Flag => "true or false",
            };
            // Errors are logged, and the key must not be.
            let value = if option.name == "key" { type_of(json) } else { json.to_string() };
            let (place, allowed) = (place.clone(), allowed.to_owned());
            return Err(OptionsError::Value { place, value, allowed });
        }
    };
    Ok(Some(text))
}

/// The type of a value that is not shown.
fn type_of(json: &Json) -> String {
    let name = match json {
        Json::Null => "null",
        Json::Bool(_) => "true or false",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "an array",
        Json::Object(_) => "an object",
    };
    format!("({name})")
}
