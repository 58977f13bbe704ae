"""Access files of both formats, and their reload after a change."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import TYPE_CHECKING

import pytest

from downrange.errors import MissingExtra, OptionError
from downrange.server.access.file import AccessFile, load_access
from downrange.server.outputs import Peer
from downrange.wire.command import Command
from downrange.wire.signatures import sign
from tests.support.clock import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

PEER = Peer(1, "10.0.0.7:41732")
TRUSTED = Peer(2, "10.9.9.9:41732")

TOML = """
trusted_addresses = ["10.9.*.*"]
[accounts.root-account]
secret_key = "root-secret"
admin = true
[accounts.app-account]
secret_key = "0123456"
default_topic = "SUB"
default_group = "DENY"
topics = { orders = "PUB|SUB", hidden = "DENY" }
groups = { workers = "SUB" }
trusted_addresses = ["10.1.2.3", "10.1.2.4"]
"""
#: The same rules in Apache's format, with some variants that YAML allows.
YAML = """
globalWhiteRemoteAddresses:
  - 10.9.*.*
dataVersion:
  - counter: 3
    timestamp: 1
accounts:
  - accessKey: root-account
    secretKey: root-secret
    whiteRemoteAddress:
    admin: True
    topicPerms:
  - accessKey: app-account
    secretKey: 0123456
    whiteRemoteAddress: 10.1.2.{3,4}
    admin: false
    defaultTopicPerm: SUB
    defaultGroupPerm: DENY
    topicPerms:
      - orders=PUB|SUB
      - hidden = DENY
    groupPerms:
      - workers=SUB
"""


def signed(code: int, fields: dict[str, str], key: str, secret: str) -> Command:
    command = Command(code, dict(fields))
    sign(command, key, secret)
    return command


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "text"), [("a.toml", TOML), ("a.yml", YAML), ("A.YAML", YAML)])
def test_both_forms_give_the_same_rules(tmp_path: Path, name: str, text: str) -> None:
    rules = load_access(written(tmp_path, name, text))

    def is_served(code: int, **fields: str) -> bool:
        return rules.check(signed(code, fields, "app-account", "0123456"), PEER) is None

    assert rules.account_count == 2
    assert rules.check(signed(17, {}, "root-account", "root-secret"), PEER) is None
    assert rules.check(Command(17), TRUSTED) is None
    assert rules.check(Command(17, {"AccessKey": "app-account"}), Peer(3, "10.1.2.4:1")) is None
    assert rules.check(Command(105), PEER) is None
    assert is_served(310, b="orders")
    assert not is_served(310, b="others")
    assert is_served(30, topic="others")
    assert not is_served(30, topic="hidden")
    assert is_served(38, consumerGroup="workers")
    assert not is_served(38, consumerGroup="others")
    assert not is_served(17)


@pytest.mark.parametrize("name", ["empty.toml", "empty.yml"])
def test_file_without_accounts_denies_every_request(tmp_path: Path, name: str) -> None:
    rules = load_access(written(tmp_path, name, "accounts: []" if name.endswith("yml") else ""))
    assert rules.account_count == 0
    assert rules.check(Command(30), PEER) is not None


def test_name_server_can_be_closed(tmp_path: Path) -> None:
    rules = load_access(written(tmp_path, "a.toml", "nameserver_open = false"))
    assert rules.check(Command(105), PEER) is not None


@pytest.mark.parametrize(
    ("word", "is_admin"), [("yes", True), ("ON", True), ("no", False), ("'off'", False)]
)
def test_yaml_booleans_are_read(tmp_path: Path, word: str, is_admin: bool) -> None:
    text = f"accounts: [{{accessKey: app-account, secretKey: '0123456', admin: {word}}}]"
    rules = load_access(written(tmp_path, "a.yml", text))
    request = signed(17, {}, "app-account", "0123456")
    assert (rules.check(request, PEER) is None) == is_admin


ACCOUNT = '[accounts.app-account]\nsecret_key = "0123456"\n'
YAML_ACCOUNT = "accounts:\n- accessKey: app-account\n  secretKey: 0123456\n"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.toml", "accounts =", "Invalid value (at end of document)"),
        ("a.toml", "acounts = {}", "acounts is not known; did you mean 'accounts'?"),
        (
            "a.toml",
            "[accounts]\napp-account = 5",
            "accounts: Expected `object`, got `int` - at `$[...]`",
        ),
        (
            "a.toml",
            "[accounts.app-account]\nadmin = true",
            "accounts.app-account: secret_key is missing",
        ),
        (
            "a.toml",
            "[accounts.app-account]\nsecret_key = 12345678",
            "accounts.app-account: secret_key: Expected `str`, got `int`",
        ),
        (
            "a.toml",
            f"{ACCOUNT}admn = true",
            "accounts.app-account: admn is not known; did you mean 'admin'?",
        ),
        (
            "a.toml",
            '[accounts.app-account]\nsecret_key = "012345"',
            "account 'app-account': the secret key has 6 characters, less than 7",
        ),
        (
            "a.toml",
            '[accounts.app]\nsecret_key = "0123456"',
            "account 'app': the access key has 3 characters, less than 7",
        ),
        (
            "a.toml",
            f'{ACCOUNT}topics = {{ orders = "pub" }}',
            "accounts.app-account.topics.orders: 'pub' is not a permission: give ",
        ),
        (
            "a.toml",
            f'{ACCOUNT}default_group = "ALL"',
            "accounts.app-account.default_group: 'ALL' is not a permission: give ",
        ),
        (
            "a.toml",
            'trusted_addresses = ["10.0.0"]',
            "trusted_addresses: '10.0.0' is not an address pattern: an IPv4 address has four parts",
        ),
        ("a.yml", "accounts: [", "line 1, column 12: expected the node content, but found "),
        ("a.yml", "\x07", "it is not YAML"),
        ("a.yml", "just a text", "Expected `object`, got `str`"),
        (
            "a.yml",
            "accounts:\n- accessKey: app-account\n  secretKey:\n",
            "accounts[0]: Object miss",
        ),
        (
            "a.yml",
            f"{YAML_ACCOUNT}  admin: maybe",
            "accounts[0] (app-account).admin: 'maybe' is neither true nor false",
        ),
        (
            "a.yml",
            f"{YAML_ACCOUNT}  topicPerms: [orders]",
            "accounts[0] (app-account).topicPerms: 'orders' is not of the form name=permission",
        ),
        (
            "a.yml",
            f"{YAML_ACCOUNT}  groupPerms: [g=SUB, g = DENY]",
            "accounts[0] (app-account).groupPerms: 'g' is given twice",
        ),
        (
            "a.yml",
            f"{YAML_ACCOUNT}  groupPerms: [g=ALL]",
            "accounts[0] (app-account).groupPerms.g: 'ALL' is not a permission",
        ),
        ("a.yml", YAML_ACCOUNT + YAML_ACCOUNT[10:], "account 'app-account' is given twice"),
        ("a.json", "{}", "the suffix is neither .toml nor .yml"),
    ],
)
def test_bad_file_is_refused_with_the_place_and_the_problem(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    path = written(tmp_path, name, text)
    with pytest.raises(OptionError) as caught:
        load_access(str(path))
    assert str(caught.value).startswith(f"access file {path}: {problem}")


def test_error_never_repeats_a_secret(tmp_path: Path) -> None:
    for name, text in {
        "a.yml": "accounts:\n- accessKey: app-account\n  secretKey: top-secret: oh\n",
        "a.toml": '[accounts.app-account]\nsecret_key = "top-secret\n',
    }.items():
        with pytest.raises(OptionError) as caught:
            load_access(written(tmp_path, name, text))
        assert "top-secret" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"access file .*none\.toml cannot be read: No such file"):
        load_access(tmp_path / "none.toml")
    (tmp_path / "odd.toml").write_bytes(b"# \xff")
    with pytest.raises(OptionError, match=r"access file .*odd\.toml is not UTF-8 at byte 2"):
        load_access(tmp_path / "odd.toml")


def test_yaml_without_the_extra_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)  # as if it were not installed
    with pytest.raises(MissingExtra, match="an access file in YAML needs the extra 'server'"):
        load_access(written(tmp_path, "a.yml", YAML))


# ---- changes -------------------------------------------------------------------------------------


def replaced(path: Path, text: str) -> None:
    """Replace the file by a new one, as many editors do."""
    scratch = path.with_suffix(".new")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)


def test_changed_file_is_reloaded_at_the_next_poll(tmp_path: Path) -> None:
    clock = FakeClock()
    path = written(tmp_path, "a.toml", TOML)
    file = AccessFile(path, clock=clock)
    before = file.rules
    replaced(path, "")
    clock.seconds += 0.9
    assert not file.poll()
    assert file.rules is before
    clock.seconds += 0.1
    assert file.poll()
    assert file.rules.account_count == 0
    assert file.check(signed(17, {}, "root-account", "root-secret"), PEER) is not None


def test_file_that_did_not_change_is_not_reloaded(tmp_path: Path) -> None:
    clock = FakeClock()
    file = AccessFile(written(tmp_path, "a.toml", TOML), clock=clock)
    before = file.rules
    clock.seconds += 5
    assert not file.poll()
    assert file.rules is before


def test_change_that_keeps_size_and_inode_is_noticed_by_its_time(tmp_path: Path) -> None:
    clock = FakeClock()
    path = written(tmp_path, "a.toml", ACCOUNT)
    file = AccessFile(path, clock=clock)
    path.write_text(ACCOUNT.replace("0123456", "6543210"), encoding="utf-8")
    os.utime(path, ns=(1, 1))
    clock.seconds += 1
    assert file.poll()
    assert file.check(signed(28, {}, "app-account", "6543210"), PEER) is None


@pytest.mark.parametrize("damage", ["bad", "gone"])
def test_bad_change_keeps_the_old_rules_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    clock = FakeClock()
    path = written(tmp_path, "a.toml", TOML)
    file = AccessFile(path, clock=clock)
    if damage == "bad":
        replaced(path, "accounts = 5")
    else:
        path.unlink()
    for _ in range(3):
        clock.seconds += 1
        assert not file.poll()
    assert file.check(signed(17, {}, "root-account", "root-secret"), PEER) is None
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert str(path) in warning.message
    assert warning.message.endswith("; the previous rules stay in force")
    replaced(path, ACCOUNT)
    clock.seconds += 1
    assert file.poll()
    assert file.rules.account_count == 1


def test_bad_file_at_the_start_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        AccessFile(tmp_path / "none.yml")


class NotifyingFile(AccessFile):
    """Sets an event when new rules are in force."""

    def reload_event(self, loop: asyncio.AbstractEventLoop) -> asyncio.Event:
        self.loop, self.taken = loop, asyncio.Event()
        return self.taken

    def poll(self) -> bool:
        is_new = super().poll()
        if is_new:
            self.loop.call_soon_threadsafe(self.taken.set)
        return is_new


def test_watch_reloads_a_changed_file(tmp_path: Path) -> None:
    path = written(tmp_path, "a.toml", TOML)

    async def run() -> int:
        file = NotifyingFile(path, interval=0)
        taken = file.reload_event(asyncio.get_running_loop())
        watching = asyncio.create_task(file.watch())
        replaced(path, ACCOUNT)
        async with asyncio.timeout(60):
            await taken.wait()
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        return file.rules.account_count

    assert asyncio.run(run()) == 1
