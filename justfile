# Shorthands; `just --list` names them. Steps of CI are defined in .ci/run alone.

nightly := "cargo +nightly"
host := "x86_64-unknown-linux-gnu"

# What to run before a commit.
check: words lint test doc

# Idioms and spelling, paths in documents, rules without a test, circles of imports, sizes of files and functions.
words:
    .ci/run words paths structure

# The test command of README.md.
test:
    .ci/run test

# Formatting, and clippy with warnings denied.
lint:
    .ci/run fmt clippy

# Documentation with warnings denied.
doc:
    .ci/run docs

# The whole of CI.
ci:
    .ci/run

# The concurrency models of the mailbox and the byte queues.
loom:
    .ci/run loom

# One fuzz target for some seconds, `just fuzz kcp_ops 600`, or its corpus: `just fuzz kcp_ops minimise`.
fuzz TARGET WHAT:
    scripts/fuzz {{ TARGET }} {{ WHAT }}

# One benchmark: `just bench core`.
bench NAME:
    cargo bench --bench {{ NAME }}

# kcpx on impaired paths in virtual time, with the goal beside each figure: `just loss --help`.
loss *ARGS:
    cargo bench --bench loss --features _testkit -- {{ ARGS }}

# One seed of the simulators again, with what they print; of all tests, or of those named.
sim SEED *TESTS="core::tests driver::tests":
    KCP_TEST_SEED={{ SEED }} cargo test --lib --all-features -- --nocapture {{ TESTS }}

# Whole systems in virtual time, with new seeds until the minutes have passed.
swarm MINUTES:
    KCPX_SWARM_MINUTES={{ MINUTES }} cargo test --lib --all-features -- --nocapture --ignored \
        swarm_of_new_seeds

# Against other implementations; with kcp-go where Go and its module proxy are there.
interop *ARGS:
    KCPX_KCP_GO_DIR=$(scripts/build-kcp-go target/ci/kcp-go) cargo test -p kcpx-interop {{ ARGS }}

# Every cell against both versions of kcp-go, and the figures of docs/interop.md.
interop-matrix:
    KCPX_KCP_GO_MATRIX=1 KCPX_KCP_GO_DIR=$(scripts/build-kcp-go target/ci/kcp-go) \
        cargo test --release -p kcpx-interop --no-fail-fast --test all -- \
        kcp_go:: kcp_go_fec:: kcp_go_paths:: --nocapture --test-threads 1 --include-ignored

# Other transports side by side; `just compare --help` names what there is to measure.
compare *ARGS:
    cargo run --release -p kcpx-compare -- {{ ARGS }}

# Attacks on servers over loopback, each with its bound, such as `just attacks --only fin`.
attacks *ARGS:
    cargo run --release -p kcpx-hostile -- attacks {{ ARGS }}

# Random changes of the code, and which of them tests notice: `just mutants 7 100 core`; `just mutants --help`.
mutants *ARGS:
    cargo run -p kcpx-mutants -- {{ ARGS }}

# With --target the flag leaves build scripts and procedural macros alone.
# Unit tests under AddressSanitizer, leaks included; all, or a part: `just asan sys::`.
asan *FILTERS:
    RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=target/asan \
        {{ nightly }} test --lib --target {{ host }} -- {{ FILTERS }}

# Without C code, which Miri cannot run. Isolation is off since property tests read the environment and their stored failures.
# Unit tests under Miri, which has no sockets and is slow; name the parts: `just miri core::seq`.
miri +FILTERS:
    MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=8 CARGO_TARGET_DIR=target/miri \
        {{ nightly }} miri test --lib --no-default-features --features tracing -- {{ FILTERS }}

# The oldest compiler that the manifest allows.
msrv:
    cargo +1.89 check --all-features
