# Other Debian releases in directories of this host; sourced after lib.sh, not run. The caller is root and has mmdebstrap.
# shellcheck disable=SC2154 # the caller's $logs

# The package source of this host's release; empty if the host is not Debian: mmdebstrap then uses its default.
mirror() {
    . /etc/os-release
    [ "$ID" = debian ] || return 0
    # shellcheck disable=SC2016 # apt's own placeholders
    apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' |
        awk -v release="$VERSION_CODENAME" '$1 == release { print $2; exit }'
}

# unpack RELEASE DIRECTORY [PACKAGE,...]
unpack() {
    apt-config dump | grep -E '^Acquire::(Check-|https?::|Retries)' >"$logs/apt.conf" || true
    # shellcheck disable=SC2046 # no word where there is no mirror
    mmdebstrap --variant=minbase --include="python3,python3-venv${3:+,$3}" --aptopt="$logs/apt.conf" \
        --dpkgopt=force-unsafe-io "$1" "$2" $(mirror)
}

# make_tester ROOT: an ordinary user there, with this host's way to the package index.
make_tester() {
    chroot "$1" useradd --create-home --shell /bin/sh tester
    pip_settings >"$1/etc/pip.conf"
    cp /etc/resolv.conf /etc/hosts "$1/etc/"
}

# as_tester ROOT COMMAND...: runs it in the tester's checkout, as first process of a pid namespace, so that nothing
# outlives it.
as_tester() {
    tester_root=$1
    shift
    unshare --mount --pid --fork --kill-child --propagation private scripts/enter-root "$tester_root" \
        setpriv --reuid=tester --regid=tester --init-groups --inh-caps=-all \
        env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/home/tester LANG=C.UTF-8 TERM=dumb COVERAGE_CORE=sysmon \
        WARMCELL_TEST_EXTRA=test-cage \
        sh -c 'cd && cd warmcell && exec "$@"' sh "$@"
}
