"""Accounts and certificates for the secured variants of a test cluster.

The two releases secure a broker in different ways: 4.9.4 reads a file of accounts; 5.5.0 keeps
users and policies in its store, created by administration requests. `Accounts` converts to both
forms.
"""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.apache import probe
from tests.apache.artifacts import ApacheUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_CREATE_USER = 3001
_CREATE_ACL = 3006

_AUTHENTICATION = "org.apache.rocketmq.auth.authentication"
_AUTHORIZATION = "org.apache.rocketmq.auth.authorization"


@dataclass(frozen=True, slots=True)
class Account:
    """One account.

    Attributes:
        access_key: Name of the account, at least seven characters (4.9.4 requires this).
        secret_key: Its secret, at least seven characters.
        is_admin: May do everything.
        topics: Permission by topic for an account that is not an administrator: "PUB", "SUB",
            "PUB|SUB" or "DENY"; "*" (5.5.0) names every topic.
        groups: Permission by consumer group.
    """

    access_key: str
    secret_key: str
    is_admin: bool = False
    topics: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Accounts:
    """The accounts of a cluster; brokers sign their own requests as the administrator."""

    admin: Account
    others: tuple[Account, ...] = ()

    def plain_acl_yaml(self) -> str:
        """Return the account file of a 4.9.4 broker."""
        # JSON is a subset of YAML, so no YAML quoting is needed.
        accounts = [
            {
                "accessKey": account.access_key,
                "secretKey": account.secret_key,
                "whiteRemoteAddress": "",
                "admin": account.is_admin,
                "defaultTopicPerm": "DENY",
                "defaultGroupPerm": "DENY",
                "topicPerms": [f"{name}={perm}" for name, perm in account.topics.items()],
                "groupPerms": [f"{name}={perm}" for name, perm in account.groups.items()],
            }
            for account in (self.admin, *self.others)
        ]
        return json.dumps({"globalWhiteRemoteAddresses": [], "accounts": accounts}, indent=1)

    def auth_options(self) -> dict[str, str]:
        """Return the options of a 5.5.0 broker that switch access control on."""
        admin = self.admin
        user = {"username": admin.access_key, "password": admin.secret_key}
        inner = {"accessKey": admin.access_key, "secretKey": admin.secret_key}
        authentication = f"{_AUTHENTICATION}.provider"
        authorization = f"{_AUTHORIZATION}.provider"
        return {
            "authenticationEnabled": "true",
            "authenticationProvider": f"{authentication}.DefaultAuthenticationProvider",
            "authenticationMetadataProvider": (
                f"{authentication}.LocalAuthenticationMetadataProvider"
            ),
            "authorizationEnabled": "true",
            "authorizationProvider": f"{authorization}.DefaultAuthorizationProvider",
            "authorizationMetadataProvider": f"{authorization}.LocalAuthorizationMetadataProvider",
            "initAuthenticationUser": json.dumps(user),
            "innerClientAuthenticationCredentials": json.dumps(inner),
        }

    def create_users(self, broker: str, *, tls: ssl.SSLContext | None = None) -> None:
        """Create the other accounts on a running 5.5.0 broker.

        Raises:
            RuntimeError: The broker refused an account.
        """
        for account in self.others:
            user = {"username": account.access_key, "password": account.secret_key}
            user |= {"userType": "Super" if account.is_admin else "Normal"}
            self._admin_call(broker, _CREATE_USER, {"username": account.access_key}, user, tls)
            resources = {f"Topic:{name}": perm for name, perm in account.topics.items()}
            resources |= {f"Group:{name}": perm for name, perm in account.groups.items()}
            if not resources:
                continue
            entries = [_policy_entry(name, perm) for name, perm in resources.items()]
            subject = f"User:{account.access_key}"
            policies = [{"policyType": "CUSTOM", "entries": entries}]
            acl = {"subject": subject, "policies": policies}
            self._admin_call(broker, _CREATE_ACL, {"subject": subject}, acl, tls)

    def _admin_call(
        self,
        broker: str,
        code: int,
        fields: Mapping[str, str],
        body: object,
        tls: ssl.SSLContext | None,
    ) -> None:
        answer = probe.call(
            broker,
            code,
            fields,
            body=json.dumps(body).encode(),
            tls=tls,
            access_key=self.admin.access_key,
            secret_key=self.admin.secret_key,
        )
        if answer.code != 0:
            raise RuntimeError(f"{broker} refused {code} {fields}: {answer.code} {answer.remark}")


def _policy_entry(resource: str, permission: str) -> dict[str, object]:
    if permission == "DENY":
        return {"resource": resource, "actions": ["All"], "decision": "Deny"}
    actions = [{"PUB": "Pub", "SUB": "Sub"}[part] for part in permission.split("|")]
    return {"resource": resource, "actions": actions, "decision": "Allow"}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a server: certificate, key (PKCS#8, no password) and signing authority."""

    certificate: Path
    key: Path
    authority: Path

    def client_context(self, *, verified: bool = True) -> ssl.SSLContext:
        """Return a context that trusts only this authority, or every server if not `verified`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # RocketMQ clients never check the host name either.
        context.check_hostname = False
        if verified:
            context.load_verify_locations(cafile=str(self.authority))
        else:
            context.verify_mode = ssl.CERT_NONE
        return context

    def server_properties(self) -> dict[str, str]:
        """Return the system properties of a server that requires TLS and also connects with it."""
        return {
            "tls.server.mode": "enforcing",
            "tls.test.mode.enable": "false",
            "tls.server.certPath": str(self.certificate),
            "tls.server.keyPath": str(self.key),
            "tls.server.authClient": "false",
        } | self.client_properties()

    def client_properties(self) -> dict[str, str]:
        """Return the system properties of a Java client that checks the server's certificate."""
        return {
            "tls.enable": "true",
            "tls.test.mode.enable": "false",
            "tls.client.authServer": "true",
            "tls.client.trustCertPath": str(self.authority),
        }


def make_tls_files(folder: Path) -> TlsFiles:
    """Make an authority, and a certificate for localhost and 127.0.0.1 signed by it.

    Raises:
        ApacheUnavailable: There is no `openssl` command, or it failed.
    """
    openssl = shutil.which("openssl")
    if openssl is None:
        raise ApacheUnavailable("no openssl in PATH to make certificates")
    folder.mkdir(parents=True, exist_ok=True)
    files = TlsFiles(folder / "server.pem", folder / "server.key", folder / "authority.pem")
    authority_key, request = folder / "authority.key", folder / "server.csr"
    extensions = folder / "extensions.cnf"
    extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    # "req -newkey" writes an unencrypted PKCS#8 key, the only form that Netty reads.
    new_key = ["req", "-newkey", "rsa:2048", "-nodes", "-sha256"]
    life = ["-days", "30", "-sha256"]
    name = ["-subj", "/CN=Downrange test authority"]
    signer = ["-CA", str(files.authority), "-CAkey", str(authority_key), "-CAcreateserial"]
    extra = ["-extfile", str(extensions)]
    steps = [
        [*new_key, "-x509", "-days", "30", *name, *_keyout(authority_key, files.authority)],
        [*new_key, "-subj", "/CN=localhost", *_keyout(files.key, request)],
        ["x509", "-req", *signer, *life, *extra, *_inout(request, files.certificate)],
    ]
    for step in steps:
        done = subprocess.run([openssl, *step], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ApacheUnavailable(f"openssl {step[0]} failed: {done.stderr.strip()[-500:]}")
    return files


def _keyout(key: Path, out: Path) -> list[str]:
    return ["-keyout", str(key), "-out", str(out)]


def _inout(given: Path, out: Path) -> list[str]:
    return ["-in", str(given), "-out", str(out)]
