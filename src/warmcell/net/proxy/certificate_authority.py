"""The sandbox's own certificate authority: opt-in, in memory, valid only for named hosts.

With it the proxy can add credentials to a process guest's HTTPS requests without exposing them to the guest.
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import tempfile
import threading
from collections.abc import Iterable
from typing import Any

from warmcell.core.errors import PolicyViolation
from warmcell.net.optional_packages import need
from warmcell.net.rules.fetch_policy import FetchPolicy
from warmcell.net.rules.hosts import Host, HostPattern, Reach, parse_injection

EXTRA = "net-tls"
LIFETIME = datetime.timedelta(days=7)


class SandboxAuthority:
    """Issues certificates for the named hosts. A name constraint makes its root certificate invalid for all others."""

    def __init__(self, domains: Iterable[str]) -> None:
        self._patterns = tuple(parse_injection(domain)[0] for domain in domains)
        if not self._patterns or any(pattern.reach is Reach.ANY_NAME for pattern in self._patterns):
            raise PolicyViolation("a sandbox CA must name the hosts that it terminates", hint="use inject={...}")
        self._x509 = need("cryptography.x509", EXTRA)
        self._ec = need("cryptography.hazmat.primitives.asymmetric.ec", EXTRA)
        self._serialization = need("cryptography.hazmat.primitives.serialization", EXTRA)
        self._sha256 = need("cryptography.hazmat.primitives.hashes", EXTRA).SHA256()
        self._made_at = datetime.datetime.now(datetime.UTC)
        self._key = self._ec.generate_private_key(self._ec.SECP256R1())
        self._certificate = self._root()
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._lock = threading.Lock()

    @classmethod
    def for_policy(cls, policy: FetchPolicy) -> SandboxAuthority:
        """An authority for exactly the hosts in the policy's `inject`."""
        return cls(policy.inject)

    @property
    def is_fresh(self) -> bool:
        """Whether at least half of its lifetime is left: only then a guest that starts now should get it."""
        return datetime.datetime.now(datetime.UTC) - self._made_at < LIFETIME / 2

    def covers(self, host: Host) -> bool:
        return any(pattern.matches(host) for pattern in self._patterns)

    @property
    def certificate_pem(self) -> bytes:
        """The root certificate, for the guest. The key stays in this object."""
        return bytes(self._certificate.public_bytes(self._serialization.Encoding.PEM))

    def bundle_pem(self) -> bytes:
        """The system's roots plus this one, for programs that read a single CA file."""
        system = ssl.create_default_context().get_ca_certs(binary_form=True)
        return "".join(ssl.DER_cert_to_PEM_cert(der) for der in system).encode() + self.certificate_pem

    def context_for(self, host: Host) -> ssl.SSLContext:
        """A server context with a certificate for the host, cached."""
        with self._lock:
            if host.name not in self._contexts:
                if len(self._contexts) >= 1024:
                    self._contexts.clear()
                self._contexts[host.name] = self._context(host)
            return self._contexts[host.name]

    def _context(self, host: Host) -> ssl.SSLContext:
        key = self._ec.generate_private_key(self._ec.SECP256R1())
        name = self._x509.DNSName(host.name) if host.address is None else self._x509.IPAddress(host.address)
        names = self._x509.SubjectAlternativeName([name])
        usage = self._x509.ExtendedKeyUsage([self._x509.oid.ExtendedKeyUsageOID.SERVER_AUTH])
        leaf = self._builder("warmcell leaf", key).add_extension(names, critical=True).add_extension(usage, False)
        leaf = leaf.add_extension(self._x509.BasicConstraints(ca=False, path_length=None), critical=True)
        certificate = self._with_key_ids(leaf, key).sign(self._key, self._sha256)
        return _server_context(self._pem(certificate, key))

    def _pem(self, certificate: Any, key: Any) -> bytes:
        forms = self._serialization
        private = key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
        return bytes(certificate.public_bytes(forms.Encoding.PEM) + self.certificate_pem + private)

    def _root(self) -> Any:
        limits = self._x509.NameConstraints([self._subtree(pattern) for pattern in self._patterns], None)
        root = self._builder("warmcell sandbox CA", self._key).add_extension(limits, critical=True)
        root = root.add_extension(self._x509.BasicConstraints(ca=True, path_length=0), critical=True)
        root = root.add_extension(self._ca_usage(), critical=True)
        return self._with_key_ids(root, self._key).sign(self._key, self._sha256)

    def _ca_usage(self) -> Any:
        off = dict.fromkeys(
            ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
        )
        return self._x509.KeyUsage(**off, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False)

    def _subtree(self, pattern: HostPattern) -> Any:
        assert pattern.host is not None
        if pattern.host.address is not None:
            return self._x509.IPAddress(ipaddress.ip_network(pattern.host.address))
        return self._x509.DNSName(pattern.host.name)

    def _builder(self, common_name: str, key: Any) -> Any:
        x509, now = self._x509, datetime.datetime.now(datetime.UTC)
        subject = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, common_name)])
        issuer = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "warmcell sandbox CA")])
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        # Backdated by an hour in case the guest's clock is behind.
        return builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + LIFETIME)

    def _with_key_ids(self, builder: Any, key: Any) -> Any:
        subject_id = self._x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        issuer_id = self._x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return builder.add_extension(subject_id, critical=False).add_extension(issuer_id, critical=False)


def _server_context(pem: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # The ssl module reads keys only from files. An unnamed file disappears however this process ends.
    with tempfile.TemporaryFile() as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(f"/dev/fd/{file.fileno()}")
    return context
