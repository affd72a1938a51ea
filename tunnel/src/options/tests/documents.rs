//! Documents of this crate, and the help of kcptun in the folder `KCPX_KCPTUN_DIR`, against the options.

use std::process::Command;

use kcpx_skip::programs_in;

use super::super::table::{Kind, find};
use super::*;

/// Code blocks of a language in README.md and `docs/`, each with the document's name.
fn blocks(language: &str) -> Vec<(String, String)> {
    let root = env!("CARGO_MANIFEST_DIR");
    let docs = fs::read_dir(format!("{root}/docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut blocks = Vec::new();
    for path in docs.chain([PathBuf::from(format!("{root}/README.md"))]) {
        let text = fs::read_to_string(&path).unwrap().replace("\r\n", "\n");
        for block in text.split(&format!("```{language}\n")).skip(1) {
            let block = block.split("```").next().unwrap();
            blocks.push((path.display().to_string(), block.to_owned()));
        }
    }
    blocks
}

#[test]
fn commands_of_the_documents_load() {
    let file = TempFile::new("{}");
    let mut commands = 0;
    for (document, block) in blocks("sh") {
        for line in block.lines().filter(|line| line.starts_with("kcpx-tunnel ")) {
            let mut words = shlex::split(line.trim_end_matches(" &")).unwrap();
            if let Some(option) = words.iter().position(|word| word == "-c") {
                words[option + 1] = file.path().to_owned();
            }
            let loaded = Invocation::new(words, Environment::new()).load();
            let loaded = loaded.unwrap_or_else(|error| panic!("{document}: {line}: {error}"));
            assert_eq!(loaded.settings.tunnels.len(), 1);
            commands += 1;
        }
    }
    assert!(commands >= 4, "{commands} commands");
}

#[test]
fn files_of_the_documents_load_without_unknown_keys() {
    let mut files = 0;
    for (document, block) in blocks("json") {
        let json: serde_json::Value = serde_json::from_str(&block).unwrap();
        let loaded = match json.get("plugin_opts").map(|options| options.as_str().unwrap()) {
            Some(options) => {
                let options = format!("SS_PLUGIN_OPTIONS={options}");
                let host = "SS_REMOTE_HOST=0.0.0.0";
                let rest = ["SS_REMOTE_PORT=8388", "SS_LOCAL_HOST=127.0.0.1", "SS_LOCAL_PORT=1"];
                let program = json["plugin"].as_str().unwrap();
                load_with(program, &[], &[&[host, &options][..], &rest].concat())
            }
            None => {
                let file = TempFile::new(&block);
                let role = if json.get("listen").is_some() { "server" } else { "client" };
                load(&[role, "-key", "k", "-c", file.path()])
            }
        };
        let loaded = loaded.unwrap_or_else(|error| panic!("{document}: {error}:\n{block}"));
        // The documents keep kcptun's default cipher if the other side is kcptun.
        let warnings: Vec<_> =
            loaded.warnings.iter().filter(|text| !text.contains("altered")).collect();
        assert_eq!(warnings, [""; 0], "{document}:\n{block}");
        files += 1;
    }
    assert!(files >= 4, "{files} files");
}

/// Intended differences: kcptun 20210922 defaults to smux version 1, later releases to 2, and this
/// server detects it.
const DIFFERS: [&str; 1] = ["smuxver"];

/// Checks a line such as `--datashard value, --ds value text (default: 10)`.
fn check_line(line: &str, role: Role) -> Option<String> {
    let line = line.trim();
    let flags = line.strip_prefix('-')?.split("  ").next()?;
    let flags = flags.split(", ").map(|flag| flag.trim_start_matches('-').replace(" value", ""));
    let flags: Vec<_> = flags.collect();
    let name = &flags[0];
    if ["help", "version"].contains(&name.as_str()) {
        return None;
    }
    let option = find(name, Some(role)).unwrap_or_else(|| panic!("{role}: no option {name}"));
    assert_eq!(option.alias, flags.get(1).map(String::as_str), "{role} {name}");
    assert_eq!(option.kind == Kind::Flag, !line.contains(" value"), "{role} {name}");
    let default = line.rsplit_once("(default: ").and_then(|(_, rest)| rest.split_once(')'));
    if let Some((default, _)) = default.filter(|_| !DIFFERS.contains(&name.as_str())) {
        assert_eq!(option.default_for(role), default.trim_matches('"'), "{role} {name}");
    }
    Some(name.clone())
}

#[test]
fn table_has_every_option_in_the_help_of_kcptun() {
    let Some(folder) = programs_in("KCPX_KCPTUN_DIR") else { return };
    for role in [Role::Client, Role::Server] {
        let program = folder.join(format!("kcptun-{role}"));
        let help = Command::new(program).arg("--help").output().unwrap().stdout;
        let help = String::from_utf8(help).unwrap();
        let names: Vec<_> = help.lines().filter_map(|line| check_line(line, role)).collect();
        println!("{role}: {}", names.join(" "));
        assert!(names.len() >= 20, "{help}");
    }
}
