"""Servers with bad certificates: the producer fails at once, says why, and sends nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from downrange.embedded import Cluster
from downrange.errors import SendUnreachable, TlsFailed
from downrange.model import Message
from downrange.options import TLS, BrokerOptions, ClientOptions, ProducerOptions
from downrange.tls import server_context
from tests.faults.producers import KINDS, Kind, producing
from tests.faults.proxy import OUTSIDE, proxy_before
from tests.unit.server.certificates import Authority, make_authority

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

#: For a busy machine; a failure that a producer reports at once takes no such time.
PATIENT: dict[str, Any] = {
    "options": ProducerOptions(timeout=60),
    "client_options": ClientOptions(connect_timeout=60, call_timeout=60),
}
AT_ONCE_SECONDS = 20.0

pytestmark = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("certificates"), "trusted")


def _serving(authority: Authority, name: str, **how: Any) -> ssl.SSLContext:
    return server_context(*authority.issue(name, **how))


def _failure(kind: Kind, cluster: Cluster, tls: TLS) -> str:
    """Return the error of a producer that cannot start, and check that it fails at once."""
    begun = time.monotonic()
    with (
        pytest.raises(TlsFailed) as caught,
        producing(kind, cluster.name_server, tls=tls, **PATIENT),
    ):
        pass
    assert time.monotonic() - begun < AT_ONCE_SECONDS
    assert cluster.name_server in str(caught.value)
    return str(caught.value)


def test_good_certificate_is_trusted(kind: Kind, authority: Authority) -> None:
    with (
        Cluster(tls=_serving(authority, "good")) as cluster,
        producing(
            kind, cluster.name_server, tls=TLS(ca=authority.certificate), **PATIENT
        ) as producer,
    ):
        assert producer.send(Message("T", b"secret")).attempts == 1
        assert producer.submit(Message("T", b"secret")).result(60).attempts == 1


def test_certificate_of_an_unknown_authority_is_refused(
    kind: Kind, authority: Authority, tmp_path: Path
) -> None:
    stranger = make_authority(tmp_path, "stranger")
    with Cluster(tls=_serving(stranger, "strange")) as cluster:
        assert "certificate" in _failure(kind, cluster, TLS(ca=authority.certificate))


def test_certificate_that_has_expired_is_refused(kind: Kind, authority: Authority) -> None:
    with Cluster(tls=_serving(authority, "old", is_expired=True)) as cluster:
        assert "expired" in _failure(kind, cluster, TLS(ca=authority.certificate))


def test_certificate_of_another_host_is_refused_unless_the_check_is_off(
    kind: Kind, authority: Authority
) -> None:
    with Cluster(tls=_serving(authority, "elsewhere", host="192.0.2.1")) as cluster:
        assert "127.0.0.1" in _failure(kind, cluster, TLS(ca=authority.certificate))
        careless = TLS(ca=authority.certificate, check_host=False)
        with producing(kind, cluster.name_server, tls=careless, **PATIENT) as producer:
            assert producer.send(Message("T", b"1")).attempts == 1


def test_server_that_speaks_plain_text_is_refused(kind: Kind, authority: Authority) -> None:
    with Cluster() as cluster:
        assert "TLS" in _failure(kind, cluster, TLS(ca=authority.certificate))


def test_broker_with_a_certificate_of_another_host_gets_nothing(
    kind: Kind, authority: Authority
) -> None:
    """The certificate of the name server is good, that of the broker is not."""
    options = BrokerOptions(advertised_host=OUTSIDE)
    with (
        Cluster(broker=options, tls=_serving(authority, "inside")) as cluster,
        proxy_before(cluster.brokers[0]),
        producing(
            kind, cluster.name_server, tls=TLS(ca=authority.certificate), **PATIENT
        ) as producer,
    ):
        with pytest.raises(SendUnreachable) as caught:
            producer.send(Message("T", b"secret"))
        assert {type(attempt.error) for attempt in caught.value.attempts} == {TlsFailed}
        assert OUTSIDE in str(caught.value)
        assert producer.client.stats().producers["faults"].sent == 0
