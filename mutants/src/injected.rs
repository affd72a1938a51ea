
/// Chooses one mutant of this program, as the variable `KCPX_MUTANT` says.
#[doc(hidden)]
pub mod mutants {
    use std::cell::RefCell;
    use std::fs::{File, OpenOptions};
    use std::io::Write;
    use std::sync::LazyLock;

    enum Mode {
        Original,
        Mutant(usize),
        /// Appends each mutant that a thread reaches, with the name of the thread: the test.
        Record(File),
    }

    static MODE: LazyLock<Mode> = LazyLock::new(|| match std::env::var("KCPX_MUTANT") {
        Err(_) => Mode::Original,
        Ok(value) => match value.strip_prefix("record:") {
            None => Mode::Mutant(value.parse().expect("KCPX_MUTANT must be a number")),
            Some(path) => {
                let file = OpenOptions::new().create(true).append(true).open(path);
                Mode::Record(file.expect("KCPX_MUTANT must name a file that can be written"))
            }
        },
    });

    thread_local! {
        static SEEN: RefCell<Vec<bool>> = const { RefCell::new(Vec::new()) };
    }

    #[inline]
    pub fn is(id: usize) -> bool {
        match &*MODE {
            Mode::Original => false,
            Mode::Mutant(chosen) => *chosen == id,
            Mode::Record(file) => {
                record(file, id);
                false
            }
        }
    }

    fn record(mut file: &File, id: usize) {
        let is_new = SEEN.try_with(|seen| {
            let mut seen = seen.borrow_mut();
            let len = seen.len().max(id + 1);
            seen.resize(len, false);
            !std::mem::replace(&mut seen[id], true)
        });
        // A thread that ends has lost its name, too.
        if is_new == Ok(true) {
            let line = format!("{id} {}\n", std::thread::current().name().unwrap_or("?"));
            file.write_all(line.as_bytes()).expect("the record of mutants must be written");
        }
    }
}
