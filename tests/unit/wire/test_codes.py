"""The numbers of the protocol."""

from __future__ import annotations

import pytest

from downrange.wire.codes import (
    OUR_VERSION,
    Language,
    ReleaseVersion,
    RequestCode,
    ResponseCode,
    named,
    release_name,
)


def test_a_known_number_gets_its_name() -> None:
    assert named(RequestCode, 310) is RequestCode.SEND_MESSAGE_V2
    assert named(ResponseCode, 17) is ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("number", [-1, 9_999_999])
def test_an_unknown_number_stays_a_number(number: int) -> None:
    for codes in (RequestCode, ResponseCode):
        assert named(codes, number) == number
        assert type(named(codes, number)) is int


@pytest.mark.parametrize("codes", [RequestCode, ResponseCode, Language, ReleaseVersion])
def test_no_number_has_two_names(
    codes: type[RequestCode | ResponseCode | Language | ReleaseVersion],
) -> None:
    assert len(codes.__members__) == len(set(codes.__members__.values()))


def test_name_servers_answer_our_version_with_standard_json() -> None:
    assert OUR_VERSION >= ReleaseVersion.V4_9_4


def test_languages_count_up_from_java() -> None:
    """The encoder of headers looks up their names by position."""
    assert list(Language) == list(range(len(Language)))


@pytest.mark.parametrize(
    ("ordinal", "name"),
    [
        (513, "5.5.0"),
        (479, "5.3.3"),
        (401, "4.9.4"),
        (400, "4.9.4-SNAPSHOT"),
        (213, "4.0.0"),
        (611, "5.9.9"),
        (612, "612"),
        (211, "211"),
        (0, "0"),
    ],
)
def test_the_release_of_a_version_ordinal(ordinal: int, name: str) -> None:
    assert release_name(ordinal) == name
