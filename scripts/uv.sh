# Installing much from the package index; sourced after lib.sh, never run. What takes pip a minute takes uv seconds.

# pip_setting NAME: one of $settings; a list in one line.
pip_setting() {
    echo "$settings" | awk -v name="$1" '
        $1 == name && $2 == "=" { is_ours = 1; $1 = $2 = ""; print; next }
        /^[^ ]/ { is_ours = 0 }
        is_ours' | xargs
}

# as_pip_is_set COMMAND...: uv reads no settings of pip's, and the index or its certificate may be named there alone.
as_pip_is_set() {
    settings=$(pip_settings "$python") # the system's own Python may have no pip
    for pair in index-url=UV_DEFAULT_INDEX extra-index-url=UV_EXTRA_INDEX_URL find-links=UV_FIND_LINKS \
        cert=SSL_CERT_FILE trusted-host=UV_INSECURE_HOST default-timeout=UV_HTTP_TIMEOUT timeout=UV_HTTP_TIMEOUT; do
        value=$(pip_setting "${pair%=*}")
        [ -z "$value" ] || set -- "${pair#*=}=$value" "$@"
    done
    env "$@"
}

# install_fast VENV ARGUMENT...: `pip install`, by pip itself where uv cannot be had or does not manage.
install_fast() {
    python=$1/bin/python uv=$1/bin/uv cache=$1/.uv-cache
    shift
    [ -x "$uv" ] || install_with_pip uv || true
    # What is editable may have been moved with its environment, which uv would not notice.
    as_pip_is_set UV_CACHE_DIR="$cache" "$uv" pip install -q --reinstall-package warmcell --python "$python" "$@" ||
        install_with_pip "$@"
    rm -rf "$cache" # hard links to what is now in the environment
}

# Most of what is installed is never imported, so nothing is compiled ahead.
install_with_pip() {
    "$python" -m pip install -q --no-compile --disable-pip-version-check "$@"
}
