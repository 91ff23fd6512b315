# Fast installation from the package index with uv; sourced after lib.sh, not run.

# pip_setting NAME: prints one of $settings, a list on one line.
pip_setting() {
    echo "$settings" | awk -v name="$1" '
        $1 == name && $2 == "=" { is_ours = 1; $1 = $2 = ""; print; next }
        /^[^ ]/ { is_ours = 0 }
        is_ours' | xargs
}

# with_pip_settings COMMAND...: uv does not read pip's settings, which may name the index and its certificate.
with_pip_settings() {
    settings=$(pip_settings "$python") # the system's own Python may have no pip
    for pair in index-url=UV_DEFAULT_INDEX extra-index-url=UV_EXTRA_INDEX_URL find-links=UV_FIND_LINKS \
        cert=SSL_CERT_FILE trusted-host=UV_INSECURE_HOST default-timeout=UV_HTTP_TIMEOUT timeout=UV_HTTP_TIMEOUT; do
        value=$(pip_setting "${pair%=*}")
        [ -z "$value" ] || set -- "${pair#*=}=$value" "$@"
    done
    env "$@"
}

# install_fast VENV ARGUMENT...: `pip install` by uv, or by pip itself if uv is missing or fails.
install_fast() {
    python=$1/bin/python uv=$1/bin/uv cache=$1/.uv-cache
    shift
    [ -x "$uv" ] || install_with_pip uv || true
    installed=0
    # uv would not notice that an editable install was moved with its environment.
    with_pip_settings UV_CACHE_DIR="$cache" "$uv" pip install -q --reinstall-package warmcell --python "$python" "$@" ||
        install_with_pip "$@" || installed=$?
    rm -rf "$cache" # hard links into the environment
    return "$installed"
}

# Compile nothing ahead: most of it is never imported.
install_with_pip() {
    "$python" -m pip install -q --no-compile --disable-pip-version-check "$@"
}
