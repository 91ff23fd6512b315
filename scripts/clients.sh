# Shared by test-e2b and test-clients; sourced, never run. Foreign clients, each in an environment of its own, and a server
# of ours. WARMCELL_CLIENTS is where the environments stay: not below /work or /home/user, where guests have something else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/lib.sh
. scripts/uv.sh
clients=${WARMCELL_CLIENTS:-${XDG_CACHE_HOME:-$HOME/.cache}/warmcell/clients}
scratch=$(mktemp -d)
server=''
trap 'stop; rm -rf "$scratch"' EXIT

stop() { [ -z "$server" ] || { kill -TERM $server 2>/dev/null || true; wait $server || true; }; }

# The server's Python, which also makes the images: PYTHON, or that of the checkout's environment, made as for the tests.
if [ -z "${PYTHON:-}" ]; then
    .venv/bin/python -c 'import mcp, pytest, uvicorn, warmcell' 2>/dev/null || make_venv "$(find_python)" .venv
fi
python=${PYTHON:-$PWD/.venv/bin/python}

# environment NAME PACKAGE...: made once; leaves its directory in $made.
environment() {
    made=$clients/$1
    shift
    if [ "$(cat "$made/ready" 2>/dev/null)" != "$*" ]; then
        "$python" -m venv --clear "$made"
        "$made/bin/pip" install -q --disable-pip-version-check "$@"
        echo "$*" > "$made/ready"
    fi
}

# serve ARGUMENT...: until `stop`, which is when this script ends. E2B's clients and SandboxFusion's find it by these
# variables. What SERVE has is said to it as well: SERVE='--workers 2'.
serve() {
    rm -f "$scratch/address"
    # shellcheck disable=SC2086
    "$python" -m warmcell serve --port 0 ${SERVE:-} "$@" > "$scratch/address" &
    server=$!
    until [ -s "$scratch/address" ]; do kill -0 $server; sleep 0.1; done
    url=$(cat "$scratch/address")
    export E2B_API_URL=$url E2B_SANDBOX_URL=$url E2B_API_KEY=e2b_0000000000000000000000000000000000000000
    export SANDBOX_FUSION_ENDPOINT=$url
}

# cases ENVIRONMENT FILE...: pytest over files that our own tests do not collect.
cases() {
    where=$1
    shift
    "$where/bin/python" -m pytest -q -rs -p no:cacheprovider --noconftest -c /dev/null --rootdir "$scratch" -W ignore \
        -o asyncio_mode=auto -o asyncio_default_fixture_loop_scope=function "$@"
}
