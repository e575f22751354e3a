# Sourced by .ci/run and scripts/nightly: steps that are timed, and those that both run.

export CARGO_TERM_COLOR=never
failed=()
summary=()

# A command ends with this status if what it needs is not here.
not_run=77

# Seconds of CPU that all commands took which have ended, in `cpu_s`.
count_cpu() {
    local file
    file="$(mktemp)"
    times >"$file"
    cpu_s="$(sed -n '2s/[ms]/ /gp' "$file" | awk '{ print int(60 * ($1 + $3) + $2 + $4) }')"
    rm "$file"
}

# Runs a command under a name, and notes how long it took, on how much CPU, and how it ended.
step() {
    local name="$1"
    shift
    echo "=== $name: $*"
    local start=$SECONDS status=0 word cpu_s
    count_cpu
    local start_cpu_s="$cpu_s"
    "$@" || status=$?
    count_cpu
    case "$status" in
    0) word="ok     " ;;
    "$not_run") word="NOT RUN" ;;
    *) word="FAILED " failed+=("$name") ;;
    esac
    summary+=("$word  $((SECONDS - start)) s, CPU $((cpu_s - start_cpu_s)) s  $name")
    # Now too, for a run that is cut off prints no list.
    echo "--- ${summary[-1]}"
}

# Prints the list of steps; fails if any step failed.
finish() {
    printf '%s\n' "---" "${summary[@]}" "$SECONDS s in all"
    [ "${#failed[@]}" -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
}

# Runs a command beside the steps that follow, until `joined`.
beside() {
    beside_log="$(mktemp)"
    "$@" >"$beside_log" 2>&1 &
    beside_job=$!
    # A run that is cut off takes it along.
    trap 'kill "$beside_job" 2>/dev/null' EXIT
}

# Waits for it, and prints what it said.
joined() {
    local status=0
    wait "$beside_job" || status=$?
    cat "$beside_log"
    rm -f "$beside_log"
    return "$status"
}

# So that variables of a command do not reach the steps after it.
in_subshell() { ("$@"); }

# So many seeds, in the profile of the tests: the assertions for our own bugs are on. With nextest nothing is built anew,
# for its tests of the workspace were.
simulation() {
    export GRPCXX_SIM_SEEDS="$1"
    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run --locked --workspace --no-capture \
            -E 'package(grpcxx-runtime) and kind(lib) and test(/^simulation::clusters/)'
    else
        cargo test --locked -p grpcxx-runtime --lib simulation::clusters -- --nocapture
    fi
}

# Arguments are crates; none for all that have such tests.
under_loom() {
    # Nearly all that is compiled is not run, but for loom.
    export RUSTC_WORKSPACE_WRAPPER="$PWD/scripts/with-loom" CARGO_PROFILE_DEV_OPT_LEVEL=0
    local crate
    [ "$#" -gt 0 ] || set -- memory shm runtime collectives
    for crate in "$@"; do
        case "$crate" in
        memory) cargo test --locked --features loom -p grpcxx-memory --test loom || return 1 ;;
        shm) cargo test --locked --features loom -p grpcxx-shm --lib interleavings || return 1 ;;
        runtime) cargo test --locked --features loom -p grpcxx-runtime --lib loom_ || return 1 ;;
        collectives) cargo test --locked --features loom -p grpcxx-collectives --lib loom_ || return 1 ;;
        esac
    done
}

# With `memory` the tests of that crate alone. rpc forbids unsafe code, and its own take long; what it does with buffers
# runs the unsafe code of memory.
under_miri() {
    export MIRIFLAGS="-Zmiri-disable-isolation" CARGO_TARGET_DIR=target/miri
    export PROPTEST_CASES="${GRPCXX_MIRI_CASES:-4}"
    unset GRPCXX_MIRI_CASES
    if ! cargo +nightly miri --version >/dev/null 2>&1 &&
        ! rustup toolchain install nightly --profile minimal --component miri,rust-src >/dev/null 2>&1; then
        echo "NOT RUN: there is no nightly toolchain with Miri, and rustup cannot install one"
        return "$not_run"
    fi
    # Miri runs the tests of a program one after the other, on one CPU: so two programs run at a time. A process for each
    # test, as nextest makes it, takes longer to start than most tests take.
    local log=target/miri/random.log status=0
    mkdir -p target/miri
    cargo +nightly miri setup || return 1
    cargo +nightly miri test --locked -p grpcxx-memory --test random >"$log" 2>&1 &
    local other=$!
    cargo +nightly miri test --locked -p grpcxx-memory --lib --test heap_free &&
        cargo +nightly miri test --locked -p grpcxx-memory --doc || status=1
    if [ "${1:-}" != memory ]; then
        cargo +nightly miri test --locked -p grpcxx-rpc --lib &&
            cargo +nightly miri test --locked -p grpcxx-runtime --lib mesh || status=1
    fi
    wait "$other" || status=1
    cat "$log"
    return "$status"
}
