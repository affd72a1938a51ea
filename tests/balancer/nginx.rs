//! Runs nginx in the foreground. It ends with the standard input of the shell that starts it, so it does not
//! outlive a killed test.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use kcpx_skip::skip;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::host::Host;
use crate::wait;

/// Paths of the module in distributions. `VARIABLE` names a package that is only unpacked.
const MODULES: [&str; 3] =
    ["/usr/lib/nginx/modules", "/usr/lib64/nginx/modules", "/usr/local/lib/nginx/modules"];

/// Set to a folder with the unpacked packages of nginx.
const VARIABLE: &str = "KCPX_NGINX_DIR";

pub(crate) const WORKERS: usize = 2;

const SHELL: &str = r#""$@" & cat >/dev/null; kill $!; wait"#;

/// The executable, and the stream module unless it is built in.
pub(crate) struct Program {
    path: PathBuf,
    module: Option<PathBuf>,
}

impl Program {
    /// Returns `None` and prints the reason if there is no nginx with a stream module.
    pub(crate) fn find() -> Option<Self> {
        let root = env::var_os(VARIABLE).map_or_else(|| "/".into(), PathBuf::from);
        let path = if env::var_os(VARIABLE).is_some() {
            root.join("usr/sbin/nginx")
        } else {
            "nginx".into()
        };
        let Some(output) =
            Command::new(&path).arg("-V").output().ok().filter(|it| it.status.success())
        else {
            skip("nginx");
            return None;
        };
        let options = String::from_utf8_lossy(&output.stderr);
        let folders = MODULES.iter().map(|folder| root.join(folder.trim_start_matches('/')));
        let is_built_in = options.split_whitespace().any(|option| option == "--with-stream");
        if is_built_in {
            return Some(Self { path, module: None });
        }
        let module =
            folders.map(|folder| folder.join("ngx_stream_module.so")).find(|file| file.exists());
        if module.is_none() {
            skip("the stream module of nginx");
            return None;
        }
        Some(Self { path, module })
    }
}

/// nginx with two workers.
pub(crate) struct Nginx {
    shell: Child,
    folder: PathBuf,
    log: Arc<Mutex<Vec<String>>>,
}

impl Nginx {
    /// Starts nginx on this host with `config` at the main level of its configuration, and waits until its
    /// workers serve.
    pub(crate) fn start(host: &Host, program: &Program, config: &str) -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("balancer-{}-{number}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).unwrap();
        // Workers stay root: changing the user needs more privileges.
        let load = program.module.as_ref().map(|file| format!("load_module {};", file.display()));
        let all = format!(
            "{}\nuser root;\ndaemon off;\nworker_processes {WORKERS};\npid {}/pid;\nerror_log stderr info;\n\
             events {{ worker_connections 4096; }}\n{config}",
            load.unwrap_or_default(),
            folder.display()
        );
        let file = folder.join("nginx.conf");
        fs::write(&file, all).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", SHELL, "sh"]).arg(&program.path);
        command.args(["-e", "stderr", "-p"]).arg(&folder).arg("-c").arg(&file);
        command.stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut shell = host.start(move || command.spawn().unwrap()).recv().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (lines, lines_of) = (BufReader::new(shell.stderr.take().unwrap()).lines(), log.clone());
        thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| lines_of.lock().unwrap().push(line));
        });
        let nginx = Self { shell, folder, log };
        nginx.wait_for("start worker process ", WORKERS);
        nginx
    }

    fn count(&self, event: &str) -> usize {
        self.log.lock().unwrap().iter().filter(|line| line.contains(event)).count()
    }

    #[track_caller]
    fn wait_for(&self, event: &str, count: usize) {
        wait(event, || self.count(event) >= count);
    }

    /// Reloads the configuration, and waits until new workers have taken over.
    pub(crate) fn reload(&self) {
        let (started, ended) = ("start worker process ", "gracefully shutting down");
        let (before, after) = (self.count(started), self.count(ended));
        let pid = fs::read_to_string(self.folder.join("pid")).unwrap();
        kill(Pid::from_raw(pid.trim().parse().unwrap()), Signal::SIGHUP).unwrap();
        self.wait_for(started, before + WORKERS);
        self.wait_for(ended, after + WORKERS);
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Ends nginx; fails if it has ended already.
        drop(self.shell.stdin.take());
        drop(self.shell.wait());
        if thread::panicking() {
            println!("nginx: {:#?}", self.log.lock());
        }
        drop(fs::remove_dir_all(&self.folder));
    }
}
