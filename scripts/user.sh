# An ordinary user who owns a copy of this checkout; sourced after lib.sh, not run. The caller is root.
#
# Isolation must not depend on being root, and root's settings and toolchains may not be readable for others.

# make_user NAME: creates a user with the home $place/home. Both are removed when the script exits.
make_user() {
    user=$1
    mkdir -p /home
    place=$(mktemp -d /home/warmcell.XXXXXX) # not in /tmp, which some tests fill or cover
    chmod 755 "$place"
    trap remove_user EXIT
    trap 'exit 130' INT TERM
    # Remove the user that a killed script left behind; userdel refuses if it still has processes.
    ! id "$user" >/dev/null 2>&1 || userdel "$user"
    useradd --create-home --home-dir "$place/home" --shell /bin/sh "$user"
    # A temporary directory that is removed with the user: the next user of this name could not reuse files in /tmp.
    mkdir -p "$place/tmp"
    mkdir -p "$place/home/.config/pip"
    pip_settings >"$place/home/.config/pip/pip.conf"
    chown -R "$user" "$place/home" "$place/tmp"
}

remove_user() {
    userdel "$user" >/dev/null 2>&1 || true
    rm -rf "${logs:-}" "$place"
}

# Processes that the user left behind are printed, killed, and a failure. What ends by itself may take a while on a busy
# machine; what the tests start to stay lives for longer than this waits.
check_nothing_runs() {
    for _ in $(seq 20); do
        sleep 1
        left=$(ps -u "$user" -o stat=,pid=,args= | sed -n '/^Z/!s/^[^ ]* *//p') # zombies are init's to reap
        [ -n "$left" ] || return 0
    done
    printf 'left behind by %s:\n%s\n' "$user" "$left" >&2
    echo "$left" | while read -r pid _; do kill -9 "$pid" || true; done
    return 1
}

# A clean environment: root's names root's own directories.
as_user() {
    setpriv --reuid="$user" --regid="$(id -g "$user")" --init-groups --inh-caps=-all env -i \
        PATH="$place/rust/bin:/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
        HOME="$place/home" TMPDIR="$place/tmp" LANG=C.UTF-8 TERM=dumb \
        CI="${CI:-}" WARMCELL_MUST_WORK="${WARMCELL_MUST_WORK:-}" "$@"
}

# in_users_copy COMMAND...: runs it as the user in a copy of this checkout. A process left behind is a failure.
in_users_copy() {
    copy_checkout "$place/warmcell" && chown -R "$user" "$place/warmcell" && cd "$place/warmcell" || return
    ended=0
    as_user "$@" || ended=$?
    check_nothing_runs || ended=1
    return "$ended"
}

# rustup installs into its owner's home: copy what rustc needs to where the user can read it.
copy_rust() {
    command -v rustc >/dev/null 2>&1 || return 0
    as_user sh -c 'command -v rustc' >/dev/null 2>&1 && return 0
    sysroot=$(rustc --print sysroot)
    mkdir -p "$place/rust/bin" "$place/rust/lib"
    cp "$sysroot/bin/rustc" "$place/rust/bin/"
    cp -r "$sysroot"/lib/*.so* "$sysroot/lib/rustlib" "$place/rust/lib/"
}

# copy_checkout DIRECTORY: copies the working tree, committed or not, and the third-party suites beside it.
copy_checkout() {
    mkdir -p "$1"
    tar -cf - --exclude=./.git --exclude=./.venv --exclude=node_modules --exclude=__pycache__ --exclude='./.*_cache' \
        --exclude=./.hypothesis --exclude=./.coverage . | tar -xf - -C "$1"
    [ ! -d ../shared/suites ] || { mkdir -p "$1/../shared" && cp -r ../shared/suites "$1/../shared/"; }
}
