"""What every guest sees of the host: the system files that programs need, and nothing personal."""

from __future__ import annotations

import os
from functools import cache

from warmcell.core.records import dataclass

_TOP_LEVEL = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
#: What the dynamic loader, TLS and alternatives need. No keys, users or host names.
SHARED_ETC = tuple(
    """
    /etc/ld.so.cache /etc/ssl/certs /etc/ssl/openssl.cnf /etc/ssl/cert.pem /etc/pki/tls/certs /etc/pki/tls/cert.pem
    /etc/pki/tls/openssl.cnf /etc/pki/ca-trust/extracted /etc/ca-certificates/extracted /etc/crypto-policies
    /etc/alternatives /etc/fonts /etc/mime.types /etc/protocols /etc/services
    """.split()
)
#: Generic files of ours replace the host's, which contain its users and name.
_OWN_ETC = ("passwd", "group", "hosts", "nsswitch.conf")


@dataclass(frozen=True, slots=True)
class Mount:
    """A host path to mount at `target`. No directory above `source` is a symbolic link."""

    source: str
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class SystemLayout:
    """Read-only mounts and top-level links of the guest's system."""

    mounts: tuple[Mount, ...]
    links: tuple[tuple[str, str], ...]


@cache
def system_layout() -> SystemLayout:
    """The layout of this host. If it has merged /bin into /usr, /bin is a link, otherwise a mount."""
    links = tuple((path, os.readlink(path)) for path in _TOP_LEVEL if os.path.islink(path))
    real = [path for path in ("/usr", *_TOP_LEVEL) if os.path.isdir(path) and not os.path.islink(path)]
    etc = [Mount(os.path.realpath(path), path) for path in SHARED_ETC if os.path.exists(path)]
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "etc")
    generic = [Mount(os.path.join(own, name), f"/etc/{name}") for name in _OWN_ETC]
    return SystemLayout((*(Mount(path, path) for path in real), *etc, *generic), links)


def resolver_mounts() -> tuple[Mount, ...]:
    """The resolver configuration, for a guest that shares the host's network."""
    path = "/etc/resolv.conf"
    return (Mount(os.path.realpath(path), path),) if os.path.exists(path) else ()
