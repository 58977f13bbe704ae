"""Where a cluster is and how to sign in: the settings that command line, pipelines and Spark share.

The fields are also flags and keys of config files, see `flags`. The Spark data source gets the same
settings as texts: `source_options` writes these texts and `from_source_options` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Protocol, Self

from downrange.errors import OptionError
from downrange.options.clients import TLS, ClientOptions, Credentials
from downrange.options.flags import PROGRAM_ONLY, flag

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"
#: Field -> the environment variable that may hold its value.
VARIABLES: Final = {
    "name_server": "NAMESRV_ADDR",
    "access_key": "DOWNRANGE_ACCESS_KEY",
    "secret_key": "DOWNRANGE_SECRET_KEY",
    "security_token": "DOWNRANGE_SECURITY_TOKEN",
}
#: Milliseconds that one request of the data source may take by default.
_SOURCE_TIMEOUT_MS: Final = 10_000


class TextOptions(Protocol):
    """Options of the data source as texts, such as `spark.option_reader.OptionReader`."""

    def has(self, name: str) -> bool:
        """Whether an option is given."""
        ...

    def text(self, name: str, default: str | None = None, *, env: str | None = None) -> str | None:
        """Take a text, from an environment variable if it is not given."""
        ...

    def boolean(self, name: str, default: bool) -> bool:
        """Take true or false."""
        ...

    def milliseconds(self, name: str, default: int) -> float:
        """Take a number of milliseconds, as seconds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How to reach a cluster. Pickles and can be a key of a dict.

    Attributes:
        name_server: "host:port"; several are separated by ";".
        access_key: The account, if the cluster checks access.
        secret_key: Its secret; an environment variable is safer than a flag.
        security_token: The token of a temporary account.
        tls: Whether to use TLS.
        ca: Certificate authorities to trust instead of the system's, PEM; turns TLS on.
        certificate: The client's own certificate, PEM; turns TLS on.
        certificate_key: Its private key, PEM.
        certificate_key_password: The password of the private key.
        check_host: Whether a server's certificate must name its host.
        verify: Whether a server's certificate is checked at all; False is for tests.
        namespace: Prefix of topics and groups.
        call_timeout: Seconds that one request may take; the client's default if None.
    """

    name_server: str = field(
        default=DEFAULT_NAME_SERVER,
        metadata=flag("Name server; several are separated by ';'.", metavar="HOST:PORT"),
    )
    access_key: str | None = field(
        default=None, metadata=flag("Access key, if servers check access.", metavar="NAME")
    )
    secret_key: str | None = field(
        default=None,
        repr=False,
        metadata=flag("Its secret; the variable or a file is safer.", metavar="SECRET"),
    )
    security_token: str | None = field(
        default=None,
        repr=False,
        metadata=flag("Token of a temporary account.", metavar="TOKEN"),
    )
    tls: bool = field(default=False, metadata=flag("Use TLS."))
    ca: str | None = field(
        default=None,
        metadata=flag("Authorities to trust instead of the system's.", metavar="PEM"),
    )
    certificate: str | None = field(
        default=None, metadata=flag("Own certificate, if servers ask for one.", metavar="PEM")
    )
    certificate_key: str | None = field(
        default=None, metadata=flag("Its private key, unless in the same file.", metavar="PEM")
    )
    certificate_key_password: str | None = field(default=None, repr=False, metadata=PROGRAM_ONLY)
    check_host: bool = field(
        default=True, metadata=flag("Whether a certificate must name its host.")
    )
    verify: bool = field(default=True, metadata=PROGRAM_ONLY)
    namespace: str | None = field(default=None, metadata=flag("Prefix of topics.", metavar="NAME"))
    call_timeout: float | None = field(default=None, metadata=PROGRAM_ONLY)

    def __post_init__(self) -> None:
        """Reject options that contradict each other.

        Raises:
            OptionError: Names the option.
        """
        check_account(
            has_access_key=self.access_key is not None,
            has_secret=self.has_secret,
            names=("access_key", "secret_key"),
        )

    @property
    def has_secret(self) -> bool:
        """Whether a secret is given."""
        return self.secret_key is not None

    @property
    def secret(self) -> str | None:
        """The secret of the account."""
        return self.secret_key

    @property
    def uses_tls(self) -> bool:
        """Whether any option turns TLS on."""
        return self.tls or self.ca is not None or self.certificate is not None

    # ---- for a client --------------------------------------------------------------------------

    @property
    def credentials(self) -> Credentials | None:
        """The account, as a client takes it; None without one.

        Raises:
            OptionError: A part is empty.
        """
        secret = self.secret
        if self.access_key is None or secret is None:
            return None
        return Credentials(self.access_key, secret, self.security_token)

    @property
    def tls_options(self) -> TLS | None:
        """The TLS settings, as a client takes them; None for plain text.

        Raises:
            OptionError: There is a private key without a certificate.
        """
        tls = TLS(
            ca=self.ca,
            certificate=self.certificate,
            key=self.certificate_key,
            key_password=self.certificate_key_password,
            check_host=self.check_host,
            verify=self.verify,
        )
        return tls if self.uses_tls else None

    def client_options(self, base: ClientOptions | None = None) -> ClientOptions:
        """Return the options of a client: those of `base`, with this namespace and timeout."""
        options = replace(base or ClientOptions(), namespace=self.namespace)
        if self.call_timeout is None:
            return options
        return replace(options, call_timeout=self.call_timeout)

    # ---- for the data source of Spark ----------------------------------------------------------

    def source_options(self) -> dict[str, str]:
        """Return these as options of the `rocketmq` data source."""
        given: dict[str, str | None] = {
            "nameServer": self.name_server,
            "accessKey": self.access_key,
            "secretKey": self.secret,
            "securityToken": self.security_token,
            "namespace": self.namespace,
        }
        if self.uses_tls:
            given |= {
                "tls.enabled": "true",
                "tls.ca": self.ca,
                "tls.certificate": self.certificate,
                "tls.key": self.certificate_key,
                "tls.keyPassword": self.certificate_key_password,
                "tls.checkHost": "true" if self.check_host else "false",
                "tls.verify": None if self.verify else "false",
            }
        if self.call_timeout is not None:
            given["callTimeoutMs"] = str(round(self.call_timeout * 1000))
        return {name: value for name, value in given.items() if value is not None}

    @classmethod
    def from_source_options(cls, texts: TextOptions) -> Self:
        """Take the options of the connection out of those of the data source.

        Raises:
            OptionError: An option is missing or wrong.
        """
        name_server = texts.text("nameServer", env=VARIABLES["name_server"])
        if name_server is None:
            raise OptionError(
                "option nameServer is missing: give the address of a name server, such as "
                f"{DEFAULT_NAME_SERVER}, or set the environment variable NAMESRV_ADDR"
            )
        access_key = texts.text("accessKey", env=VARIABLES["access_key"])
        secret_key = texts.text("secretKey", env=VARIABLES["secret_key"])
        security_token = texts.text("securityToken", env=VARIABLES["security_token"])
        check_account(
            has_access_key=access_key is not None,
            has_secret=secret_key is not None,
            names=("options accessKey", "secretKey"),
        )
        names = ("tls.ca", "tls.certificate", "tls.key", "tls.keyPassword")
        uses_tls = texts.boolean("tls.enabled", any(map(texts.has, names)))
        files = [texts.text(name) for name in names]
        ca, certificate, certificate_key, password = files if uses_tls else [None] * len(files)
        options = cls(
            name_server=name_server.replace(",", ";"),
            access_key=access_key,
            secret_key=secret_key,
            security_token=security_token,
            tls=uses_tls,
            ca=ca,
            certificate=certificate,
            certificate_key=certificate_key,
            certificate_key_password=password,
            check_host=texts.boolean("tls.checkHost", True),
            verify=texts.boolean("tls.verify", True),
            namespace=texts.text("namespace"),
            call_timeout=texts.milliseconds("callTimeoutMs", _SOURCE_TIMEOUT_MS),
        )
        # A wrong account or key fails here, on the driver, and not in a task.
        _ = options.credentials, options.tls_options
        return options


def check_account(*, has_access_key: bool, has_secret: bool, names: tuple[str, str]) -> None:
    """Reject an account without its secret, and a secret without its account.

    Args:
        has_access_key: Whether the account is given.
        has_secret: Whether its secret is given.
        names: What the error calls the two options.

    Raises:
        OptionError: Only one of them is given.
    """
    if has_access_key != has_secret:
        raise OptionError(f"{names[0]} and {names[1]} need each other; give both or neither")
