"""Access control and TLS: accounts with rights, and certificates.

python examples/access_and_tls.py

It needs the package `cryptography`, to make a certificate: `pip install cryptography`. Clients and
servers of Downrange use TLS without it.
"""

from __future__ import annotations

import datetime
import ipaddress
import logging
import tempfile
from pathlib import Path

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
except ModuleNotFoundError as error:
    raise SystemExit("This example makes a certificate: pip install cryptography") from error

import downrange as mq
from downrange.tls import client_context, server_context

ACCOUNTS = """
[accounts.operator-account]
secret_key = "a long secret"
admin = true

[accounts.order-service]
secret_key = "another long secret"
topics = { orders = "PUB" }
"""


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Create a self-signed certificate for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "downrange example")])
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(host, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "server.pem").write_bytes(certificate.public_bytes(pem))
    form, open_key = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "server.key").write_bytes(key.private_bytes(pem, form, open_key))
    return folder / "server.pem", folder / "server.key"


def attempt(title: str, name_server: str, topic: str = "orders", **settings: object) -> None:
    """Send a message and print the result."""
    print(f"\n--- {title}")
    try:
        with mq.Producer(name_server, group="shop", **settings) as producer:  # type: ignore[arg-type]
            print(producer.send(mq.Message(topic, b"1")).status.name)
    except mq.RocketMQError as error:
        print(f"{type(error).__name__}: {error}")


def main() -> None:
    logging.getLogger("downrange.client").setLevel(logging.ERROR)  # no lines on failed attempts
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "access.toml").write_text(ACCOUNTS)
        certificate, key = make_certificate(folder)
        tls = mq.TLS(ca=certificate)
        service = mq.Credentials("order-service", "another long secret")
        print(service)  # the secret is not printed
        with mq.Cluster(
            access=folder / "access.toml",
            tls=server_context(certificate, key),
            client_tls=client_context(ca=certificate),
            listener=mq.ListenerOptions(tls_mode="enforcing"),
        ) as cluster:
            server = cluster.name_server
            operator = mq.Credentials("operator-account", "a long secret")
            with mq.Admin(server, credentials=operator, tls=tls) as admin:
                admin.create_topic("orders")
                admin.create_topic("bills")
            attempt("signed, over TLS", server, tls=tls, credentials=service)
            attempt("a topic without permission", server, "bills", tls=tls, credentials=service)
            wrong = mq.Credentials("order-service", "guessed")
            attempt("a wrong secret", server, tls=tls, credentials=wrong)
            attempt("without an account", server, tls=tls)
            attempt("an untrusted certificate", server, tls=mq.TLS(), credentials=service)
            attempt("plain text", server, credentials=service)


if __name__ == "__main__":
    main()
