# Debian packages that the tests need; sourced, not run. Only root installs them; tests that lack one are skipped.

# Each line: a program or file that shows that the package is installed, and the package.
tools() {
    cat <<END
bwrap bubblewrap
bash bash
curl curl
jq jq
gawk gawk
git git
setpriv util-linux
strace strace
zsh zsh
fish fish
qemu-system-x86_64 qemu-system-x86
busybox busybox-static
gcc gcc
ps procps
zip zip
unzip unzip
END
}

# Large ones, installed only where everything must work (CI).
toolchains() {
    cat <<END
g++ g++
go golang-go
javac default-jdk-headless
chromium chromium
lua5.4 lua5.4
mmdebstrap mmdebstrap
/usr/sbin/nginx nginx-light
perl perl
php php-cli
Rscript r-base-core
ruby ruby
skopeo skopeo
umoci umoci
rustc rustc
node nodejs
npm npm
/usr/lib/systemd/systemd systemd
$(cpython_suite)
END
}

# CPython's own tests, for the system's Python.
cpython_suite() {
    version=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "/usr/lib/python$version/test/test_os.py libpython$version-testsuite"
}

missing_packages() {
    while read -r sign package; do
        command -v "$sign" >/dev/null 2>&1 || [ -e "$sign" ] || printf '%s ' "$package"
    done
}

# The old-kernel lane downloads a kernel package, which needs apt's lists; only root can fetch those.
fetch_package_lists() {
    [ -n "$(apt-cache search --names-only '^linux-image-cloud-amd64$')" ] || apt-get update -q
}

install_system_packages() {
    ! { is_root && must_work; } || step "package lists" fetch_package_lists
    missing=$({ tools; ! must_work || toolchains; } | missing_packages)
    [ -n "$missing" ] || return 0
    if is_root && command -v apt-get >/dev/null 2>&1; then
        # shellcheck disable=SC2086 # several words on purpose
        step "packages" install_debian_packages $missing
    else
        echo "note: not installed, tests that need them are skipped: $missing" >&2
    fi
}

install_debian_packages() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y -q --no-install-recommends "$@" ||
        { apt-get update -q && apt-get install -y -q --no-install-recommends "$@"; }
}
