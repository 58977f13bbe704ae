from __future__ import annotations

import pytest

from downrange.server.broker.record_fields import born_host
from downrange.wire.codes import SysFlag


@pytest.mark.parametrize(
    ("address", "ip", "port", "flag"),
    [
        ("10.0.0.7:41732", "0a000007", 41732, 0),
        ("[::1]:9", "00" * 15 + "01", 9, int(SysFlag.BORN_HOST_V6)),
        ("[fe80::1%eth0]:9", "fe80" + "00" * 13 + "01", 9, int(SysFlag.BORN_HOST_V6)),
        ("[::ffff:10.0.0.7]:9", "0a000007", 9, 0),
    ],
)
def test_a_born_host_is_read_from_any_kind_of_address(
    address: str, ip: str, port: int, flag: int
) -> None:
    assert born_host(address) == (bytes.fromhex(ip), port, flag)
