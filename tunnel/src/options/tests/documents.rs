//! Commands and files in the documents of this crate: each must load.

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
