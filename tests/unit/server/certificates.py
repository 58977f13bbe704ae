"""Throw-away certificates for tests, as PEM files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates for 127.0.0.1; `certificate` is the file to trust."""

    folder: Path
    certificate: Path
    key: ec.EllipticCurvePrivateKey
    name: x509.Name

    def issue(
        self,
        name: str,
        password: str | None = None,
        *,
        host: str = "127.0.0.1",
        is_expired: bool = False,
    ) -> tuple[Path, Path]:
        """Make a certificate and its key, and return the two files."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _begin(_named(name), self.name, key, -0.5 if is_expired else 1)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address(host))]), False)
            .sign(self.key, hashes.SHA256())
        )
        files = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        _write(files[0], certificate)
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(password.encode())
                if password
                else serialization.NoEncryption(),
            )
        )
        return files


def make_authority(folder: Path, name: str) -> Authority:
    """Make an authority with its own certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _begin(_named(name), _named(name), key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    _write(path, certificate)
    return Authority(folder, path, key, _named(name))


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _begin(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days_left: float = 1
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=days_left))
    )


def _write(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
