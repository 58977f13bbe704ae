"""Our tables of codes, compared with the constants of the Java classes."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

from downrange.wire.codes import OUR_VERSION, Language, ReleaseVersion, RequestCode, ResponseCode

if TYPE_CHECKING:
    from enum import IntEnum

    from tests.apache.cluster import ApacheCluster

#: Numbers whose meaning changed in 5.x; our names are those of 5.x.
RENAMED_IN_5X = {209, 210, 211}


def _constants(cluster: ApacheCluster, *classes: str) -> dict[int, str]:
    """Return the integer constants of the classes that exist, as `javap` prints them."""
    found: dict[int, str] = {}
    tool = cluster.artifacts.java.with_name("javap")
    for name in classes:
        command = [str(tool), "-constants", "-cp", cluster.artifacts.classpath, name]
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        pairs = re.findall(r"static final int (\w+) = (-?\d+);", result.stdout)
        found |= {int(number): constant for constant, number in pairs if int(number) >= 0}
    assert found, f"none of {classes} was found"
    return found


def _assert_same(ours: type[IntEnum], theirs: dict[int, str], *, is_5x: bool) -> None:
    renamed = set() if is_5x else RENAMED_IN_5X
    known = {code.value: code.name for code in ours}
    assert {number: known.get(number) for number in theirs if number not in renamed} == {
        number: name for number, name in theirs.items() if number not in renamed
    }


def test_request_codes_are_those_of_the_java_class(apache: ApacheCluster) -> None:
    theirs = _constants(
        apache,
        "org.apache.rocketmq.remoting.protocol.RequestCode",
        "org.apache.rocketmq.common.protocol.RequestCode",
    )
    _assert_same(RequestCode, theirs, is_5x=apache.version.startswith("5."))


def test_response_codes_are_those_of_the_java_classes(apache: ApacheCluster) -> None:
    theirs = _constants(
        apache,
        "org.apache.rocketmq.remoting.protocol.RemotingSysResponseCode",
        "org.apache.rocketmq.remoting.protocol.ResponseCode",
        "org.apache.rocketmq.common.protocol.ResponseCode",
    )
    _assert_same(ResponseCode, theirs, is_5x=apache.version.startswith("5."))


def test_languages_are_those_of_the_java_class(apache: ApacheCluster) -> None:
    tool = apache.artifacts.java.with_name("javap")
    name = "org.apache.rocketmq.remoting.protocol.LanguageCode"
    command = [str(tool), "-cp", apache.artifacts.classpath, name]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    theirs = re.findall(rf"static final {re.escape(name)} (\w+);", text)
    assert theirs == [language.name for language in Language][: len(theirs)]


def test_release_numbers_are_ordinals_of_the_java_enum(apache: ApacheCluster) -> None:
    tool = apache.artifacts.java.with_name("javap")
    command = [
        *(str(tool), "-cp", apache.artifacts.classpath),
        "org.apache.rocketmq.common.MQVersion$Version",
    ]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    ordinals = re.findall(r"static final org\S+ (\w+);", text)
    for release in ReleaseVersion:
        assert ordinals[release] == release.name
    assert ordinals[OUR_VERSION] == "V5_3_3"
