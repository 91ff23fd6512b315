# Shared by the scripts in this directory; sourced, never run. The caller makes the directory $logs.
# shellcheck disable=SC2154
export PATH="$PATH:/usr/local/go/bin"
# What pytest makes of the tests is kept from one run to the next.
unset PYTHONDONTWRITEBYTECODE
# What is editable has nothing compiled, so what compiles need not be fetched for its build.
export WARMCELL_NO_PRECOMPILE=1

is_root() { [ "$(id -u)" = 0 ]; }

# CI sets this: what a laptop may go without is a failure there.
must_work() { [ "${WARMCELL_MUST_WORK:-}" = 1 ]; }

# step NAME COMMAND...: one line when it works, everything that it printed when it does not.
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

# check NAME COMMAND...: a step after which the others still run; `finish` then fails for all of them together.
failed=''
check() {
    step "$@" || failed="$failed '$1'"
}

# beside NAME COMMAND...: a check while the next ones go on already; `finish` waits for it.
waited_for=''
beside() {
    step "$@" &
    waited_for="$waited_for $!"
}

# lane NAME COMMAND...: a script of several steps, which prints its own lines.
lane() {
    name=$1
    shift
    echo "$name:"
    "$@" || failed="$failed '$name'"
}

finish() {
    for process in $waited_for; do
        wait "$process" || failed="$failed 'what ran beside them'"
    done
    if [ -n "$failed" ]; then
        echo "failed:$failed" >&2
        exit 1
    fi
    echo "all checks passed"
}

# A Python that is new enough and can make virtual environments.
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

# make_venv PYTHON DIRECTORY: the package and its test extra (or another one: WARMCELL_TEST_EXTRA), editable. Needs uv.sh.
make_venv() {
    # A venv whose interpreter is gone or older (a moved checkout, an upgraded Python) is made anew.
    is_usable_python "$2/bin/python" || "$1" -m venv --clear "$2"
    install_fast "$2" -e ".[${WARMCELL_TEST_EXTRA:-test}]"
}

# pip_settings [PYTHON]: how pip is set up here, by files and by the environment, as a file for somebody else: where the
# index is differs from host to host, and is nothing to be written down in a repository.
pip_settings() {
    echo '[global]'
    "${1:-$(find_python)}" -m pip config list | sed -nE "s/^[a-z:]+\.([a-z-]+)='(.*)'\$/\1 = \2/p" |
        awk '!seen[$1]++' | sed 's/\\n/\n    /g'
}

# Two for each processor: many tests wait for something most of their time.
workers() {
    count=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
    [ "$count" -gt 3 ] && count=3
    echo $((2 * count))
}

run_tests() {
    steadily -q -n "$(workers)" --dist loadgroup "$@"
}

# steadily ARGUMENT...: pytest of $venv, or of .venv, with these. Where a few fail they are tried once more, one after
# another. Who then passes is unsteady: that is printed, and something to mend, but does not keep a change from landing.
# When the host stands still, that meets the tests of all workers at once.
most_unsteady=6
steadily() {
    ended=0
    "${venv:-.venv}/bin/python" -m pytest --cache-clear "$@" || ended=$?
    [ "$ended" = 1 ] || return "$ended"
    names=$(last_failed)
    [ "$(echo "$names" | wc -l)" -le $most_unsteady ] || return 1
    "${venv:-.venv}/bin/python" -m pytest "$@" --lf --lfnf=none -n 0 || return 1
    # Who was not found, and so not tried, is still among them.
    [ -z "$(last_failed)" ] || return 1
    echo "$names" | sed 's/^/unsteady: /'
}

# The names that pytest remembers, one a line. Its workers write a test's group behind its name, by which nobody who runs
# the tests without workers would find it.
last_failed() {
    "${venv:-.venv}/bin/python" - <<'END'
import json, pathlib, re
file = pathlib.Path(".pytest_cache/v/cache/lastfailed")
names = {re.sub(r"@[^]@]*$", "", name): True for name in (json.loads(file.read_text()) if file.exists() else {})}
file.write_text(json.dumps(names))
print(*names, sep="\n")
END
}
