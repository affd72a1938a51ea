//! Logs of connections (`Config::qlog`): their files, and the errors of a folder.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::common::{
    assert_same, bytes, guarded, listener, on_both_runtimes, one_thread, pair, read,
};
use kcpx::{Config, Endpoint, KcpListener, KcpStream};
use serde_json::Value;
use tokio::io::AsyncWriteExt;

/// A new folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        // A run that was cut short may have left it.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn end_of_the_runtime_leaves_complete_logs_of_both_sides() {
    let folder = Folder::new("complete");
    let conv = one_thread().block_on(guarded(async {
        let mut pair = pair(Config::new().qlog(&folder.0)).await;
        let data = bytes(1, 1 << 20);
        let (client, server) = (&mut pair.client, &mut pair.server);
        let (sent, got) = tokio::join!(client.write_all(&data), read(server, data.len()));
        sent.unwrap();
        assert_same(&got, &data);
        client.conv()
    }));
    let names = folder.names();
    assert_eq!(names.len(), 2, "{names:?}");
    for role in ["client", "server"] {
        let is_log = |name: &&String| {
            name.starts_with(&format!("{conv}-")) && name.ends_with(&format!("-{role}.sqlog"))
        };
        let name = names.iter().find(is_log).unwrap();
        let text = fs::read_to_string(folder.0.join(name)).unwrap();
        let mut last = Value::Null;
        for record in text.strip_prefix('\x1E').unwrap().split('\x1E') {
            last = serde_json::from_str(record.strip_suffix('\n').unwrap()).unwrap();
        }
        assert_eq!(last["name"], "connectivity:connection_closed", "{role}");
    }
}

#[test]
fn missing_folder_is_an_error_that_names_it() {
    on_both_runtimes(|| async {
        let folder = Folder::new("missing");
        let missing = folder.0.join("logs");
        let config = Config::new().qlog(&missing);
        let peer = listener(Config::new()).await.local_addr().unwrap();
        let errors = [
            KcpListener::bind_with("127.0.0.1:0", config.clone()).await.map(drop).unwrap_err(),
            Endpoint::bind_with("127.0.0.1:0", config.clone()).await.map(drop).unwrap_err(),
            KcpStream::connect_with(peer, config).await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::NotFound);
            let text = error.to_string();
            let expected =
                format!("qlog folder {} must exist and be writable: create it", missing.display());
            assert!(text.starts_with(&expected), "{text}");
        }
        assert_eq!(folder.names(), [""; 0]);
    });
}

#[test]
fn connection_goes_on_when_the_logs_fail() {
    on_both_runtimes(|| async {
        let folder = Folder::new("failing");
        let config = Config::new().qlog(&folder.0);
        let listener = listener(config.clone()).await;
        let addr = listener.local_addr().unwrap();
        let endpoint = Endpoint::bind_with("127.0.0.1:0", config).await.unwrap();
        // The files of the connections cannot be created.
        fs::remove_dir(&folder.0).unwrap();
        for seed in 0..3 {
            let mut client = endpoint.connect(addr).await.unwrap();
            let data = bytes(seed, 1 << 18);
            let (sent, accepted) = tokio::join!(client.write_all(&data), listener.accept());
            sent.unwrap();
            let mut server = accepted.unwrap().0;
            assert_same(&read(&mut server, data.len()).await, &data);
            // The thread writes after 0.1 s, and the next connection finds that it has ended.
            tokio::time::sleep(std::time::Duration::from_millis(150)).await;
        }
        assert!(!folder.0.exists());
    });
}
