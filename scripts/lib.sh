# Shared by the scripts in this directory; sourced, not run. The caller creates the directory $logs.
# shellcheck disable=SC2154
export PATH="$PATH:/usr/local/go/bin"
# Keep pytest's compiled test modules from one run to the next.
unset PYTHONDONTWRITEBYTECODE

is_root() { [ "$(id -u)" = 0 ]; }

# CI sets WARMCELL_MUST_WORK: what a laptop may lack is an error there.
must_work() { [ "${WARMCELL_MUST_WORK:-}" = 1 ]; }

# step NAME COMMAND...: prints one line if the command succeeds, and its whole output if it fails.
step() {
    name=$1
    shift
    log="$logs/$(echo "$name" | tr ' ' '-')"
    started=$(date +%s)
    status=0
    "$@" >"$log" 2>&1 || status=$?
    grep '^unsteady: ' "$log" || true
    if [ "$status" = 0 ]; then
        passed=$(grep -oE '^([0-9]+ failed, )?[0-9]+ passed.*[0-9]' "$log" | head -n 1 || true)
        printf '%-14s ok  %3s s  %s\n' "$name" "$(($(date +%s) - started))" "$passed"
    else
        cat "$log"
        printf '%s failed (exit status %s)\n' "$name" "$status" >&2
    fi
    return "$status"
}

# check NAME COMMAND...: a step whose failure does not stop the following ones; `finish` reports all failures.
failed=''
check() {
    step "$@" || failed="$failed '$1'"
}

# beside NAME COMMAND...: a check in the background; `finish` waits for it, or `await_background` before that.
waited_for=''
beside() {
    step "$@" &
    waited_for="$waited_for $!"
}

# lane NAME COMMAND...: a script that prints its own steps.
lane() {
    name=$1
    shift
    echo "$name:"
    "$@" || failed="$failed '$name'"
}

# await_background: waits for what `beside` started.
await_background() {
    for process in $waited_for; do
        wait "$process" || failed="$failed 'a background check'"
    done
    waited_for=''
}

finish() {
    await_background
    if [ -n "$failed" ]; then
        echo "failed:$failed" >&2
        exit 1
    fi
    echo "all checks passed"
}

# True for a Python that is new enough and can create virtual environments.
is_usable_python() {
    "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for candidate in "${PYTHON:-}" python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11; do
        if [ -n "$candidate" ] && is_usable_python "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    echo "error: no Python 3.11 or newer with venv and ensurepip was found" >&2
    echo "hint: install one (Debian: apt-get install python3 python3-venv), or set PYTHON to its path" >&2
    exit 1
}

# make_venv PYTHON DIRECTORY: installs the package, editable, with its test extra (or WARMCELL_TEST_EXTRA). Needs uv.sh.
make_venv() {
    # Recreate a venv whose interpreter is missing or too old (a moved checkout, an upgraded Python).
    is_usable_python "$2/bin/python" || "$1" -m venv --clear "$2"
    install_fast "$2" -e ".[${WARMCELL_TEST_EXTRA:-test}]"
}

# pip_settings [PYTHON]: prints pip's configuration, from files and environment, as a configuration file for another
# user or system. The address of the package index belongs to the host, not to the repository.
pip_settings() {
    echo '[global]'
    "${1:-$(find_python)}" -m pip config list | sed -nE "s/^[a-z:]+\.([a-z-]+)='(.*)'\$/\1 = \2/p" |
        awk '!seen[$1]++' | sed 's/\\n/\n    /g'
}

# Two for each processor, at most six: most tests wait most of the time.
workers() {
    count=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
    [ "$count" -gt 3 ] && count=3
    echo $((2 * count))
}

run_tests() {
    run_pytest -q -n "$(workers)" --dist loadgroup "$@"
}

# run_pytest ARGUMENT...: pytest of $venv, or of .venv. A failure is red, unless every failed test is listed in
# tests/unsteady.toml: then those are tried once more, one after another, and reported.
run_pytest() {
    python="${venv:-.venv}/bin/python"
    result=0 # not `status`: that is the variable of `step`, which calls this function in the same shell
    "$python" -m pytest --cache-clear "$@" || result=$?
    [ "$result" = 1 ] || return "$result"
    names=$("$python" scripts/known-unsteady) || return 1
    # Not `echo`, which reads the backslashes in a name.
    printf '%s\n' "$names" | xargs -d '\n' "$python" -m pytest -q -n 0 -p no:cacheprovider || return 1
    printf '%s\n' "$names" | sed 's/^/unsteady: /'
}
