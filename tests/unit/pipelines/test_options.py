"""Options of pipelines from files and flags."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

import pytest

from downrange import pipelines
from downrange.errors import OptionError
from downrange.pipelines.compact import CompactOptions
from downrange.pipelines.lake import LakeOptions
from downrange.pipelines.load import LoadOptions, format_of
from downrange.pipelines.mirror import MirrorOptions
from downrange.pipelines.options import (
    ClusterOptions,
    RunOptions,
    make_options,
    read_pairs,
    time_ms,
)
from downrange.pipelines.replay import ReplayOptions
from downrange.pipelines.topic_copy import TargetOptions

if TYPE_CHECKING:
    from pathlib import Path

FILE = """
[cluster]
name_server = "ns:9876"
access_key = "me"
secret_key_file = "{secret}"
ca = "ca.pem"

[run]
once = true
stop_within = 5

[spark]
conf = {{ "spark.cores.max" = "4" }}

[lake]
topics = ["orders", "payments"]
output = "lake"
start = "2026-01-31T12:00:00Z"
read = {{ pullConcurrency = "8" }}

[mirror]
topics = ["other"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    path = tmp_path / "pipeline.toml"
    path.write_text(FILE.format(secret=secret))
    return path


def test_file_becomes_options(file: Path) -> None:
    options = make_options(LakeOptions, "lake", file=file)
    assert options.topics == ("orders", "payments")
    assert options.run == RunOptions(once=True, stop_within=5)
    assert options.spark.conf == {"spark.cores.max": "4"}
    assert options.source_options() == {
        "nameServer": "ns:9876",
        "accessKey": "me",
        "secretKey": "hush",
        "tls.enabled": "true",
        "tls.ca": "ca.pem",
        "tls.checkHost": "true",
        "subscribe": "orders,payments",
        "maxOffsetsPerTrigger": "1000000",
        "failOnDataLoss": "true",
        "startingTimestamp": "1769860800000",
        "pullConcurrency": "8",
    }


def test_flags_override_the_file_and_the_file_overrides_the_environment(file: Path) -> None:
    options = make_options(
        LakeOptions,
        "lake",
        file=file,
        flags={"lake": {"output": "elsewhere", "body": None}, "cluster": {"secret_key": "loud"}},
        fallback={"cluster": {"name_server": "env:1", "secret_key": "env", "security_token": "t"}},
    )
    assert options.output == "elsewhere"
    assert options.body == "binary"
    assert options.cluster.name_server == "ns:9876"
    assert (options.cluster.secret, options.cluster.security_token) == ("loud", "t")


def test_secret_file_overrides_the_secret_of_the_environment(file: Path) -> None:
    environment = {"cluster": {"secret_key": "env"}}
    options = make_options(LakeOptions, "lake", file=file, fallback=environment)
    assert options.cluster.secret == "hush"


def test_secrets_are_not_shown(file: Path) -> None:
    options = make_options(
        LakeOptions, "lake", file=file, flags={"cluster": {"secret_key": "loud"}}
    )
    assert "loud" not in repr(options)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[lake]\ntopic = ['a']", "[lake] topic is not known; did you mean 'topics'?"),
        ("[laek]\n", "[laek] is not known; did you mean 'lake'?"),
        ("lake = 1", "lake must be a table; write [lake] above its keys"),
        ("[lake]\ntopics = 'orders'", "[lake] topics: Expected `array`, got `str`"),
        ("[lake]\nbody = 'json'\n", "[lake] body: Invalid enum value 'json'"),
        ("[lake", "Expected ']'"),
        ("[lake]\ntopics = ['a']", "output is missing: give it, or write it into [lake]"),
        ("[lake]\noutput = 'x'", "topics is missing"),
        ("[run]\nevry = 1\n", "[run] evry is not known; did you mean 'every'?"),
    ],
)
def test_mistake_in_a_file_is_named(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(text)
    with pytest.raises(OptionError) as caught:
        make_options(LakeOptions, "lake", file=path)
    assert problem in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"none\.toml cannot be read: No such file"):
        make_options(LakeOptions, "lake", file=tmp_path / "none.toml")


def test_invalid_options_are_rejected() -> None:
    with pytest.raises(OptionError, match="need each other"):
        ClusterOptions(access_key="a")
    with pytest.raises(OptionError, match="exclude each other"):
        ClusterOptions(access_key="a", secret_key="b", secret_key_file="c")
    with pytest.raises(OptionError, match="once and every"):
        RunOptions(once=True, every=1)
    with pytest.raises(OptionError, match="must be above 0"):
        RunOptions(every=0)
    with pytest.raises(OptionError, match="must be above 0"):
        RunOptions(stop_within=0)
    with pytest.raises(OptionError, match="topics is empty"):
        LakeOptions(topics=(), output="x")
    with pytest.raises(OptionError, match="leaves no messages"):
        LakeOptions(topics=("a",), output="x", batch_messages_max=0)
    with pytest.raises(OptionError, match="start = 'soon' is not a time"):
        LakeOptions(topics=("a",), output="x", start="soon")
    with pytest.raises(OptionError, match="a wildcard for Spark"):
        LakeOptions(topics=("a",), output="lake[1]")
    with pytest.raises(OptionError, match="target_mib"):
        CompactOptions(output="x", target_mib=0)
    with pytest.raises(OptionError, match="grace"):
        CompactOptions(output="x", grace=-1)


def test_secret_file_must_hold_a_secret(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(OptionError, match="is empty"):
        _ = ClusterOptions(access_key="a", secret_key_file=str(empty)).secret
    with pytest.raises(OptionError, match="No such file"):
        _ = ClusterOptions(access_key="a", secret_key_file=str(tmp_path / "none")).secret


def test_time_needs_its_zone() -> None:
    assert time_ms("start", "1970-01-01T00:00:01.5+00:00") == 1500
    assert time_ms("start", "1234") == 1234
    with pytest.raises(OptionError, match="has no time zone; write 2026-01-01Z for UTC"):
        time_ms("start", "2026-01-01")


def test_pairs_are_read() -> None:
    assert read_pairs("--conf", ["a=b=c", "d=e"]) == {"a": "b=c", "d": "e"}
    for wrong in ("a", "=b", "a="):
        with pytest.raises(OptionError, match="NAME=VALUE"):
            read_pairs("--conf", [wrong])


def test_date_of_a_file_is_a_date(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text("[compact]\noutput = 'lake'\nbefore = 2026-02-01\n")
    assert make_options(CompactOptions, "compact", file=path).before == date(2026, 2, 1)


# ---- targets -------------------------------------------------------------------------------------


def _mirror(**more: object) -> MirrorOptions:
    settings = {"topics": ("a", "b"), "run": RunOptions(checkpoint="place"), **more}
    return MirrorOptions(**settings)  # type: ignore[arg-type]


def test_mirror_names_its_topics() -> None:
    names = _mirror(target=TargetOptions(name_server="far:1")).names
    assert names == {"a": "a", "b": "b"}
    assert _mirror(target_topic="copy-{topic}").names == {"a": "copy-a", "b": "copy-b"}


def test_mirror_rejects_an_endless_loop() -> None:
    with pytest.raises(OptionError, match="'a' would be copied to 'a' of the same cluster"):
        _mirror()
    with pytest.raises(OptionError, match="'a' would be copied to 'b' of the same cluster"):
        _mirror(target_topic="b")


def test_mirror_needs_a_checkpoint() -> None:
    with pytest.raises(OptionError, match="checkpoint is missing"):
        _mirror(run=RunOptions())


def test_target_without_an_address_has_no_other_options() -> None:
    cluster = ClusterOptions(name_server="here:1")
    assert TargetOptions().or_else(cluster) is cluster
    assert TargetOptions(name_server="far:1").or_else(cluster).name_server == "far:1"
    with pytest.raises(OptionError, match="the target has options, but no name_server"):
        TargetOptions(tls=True)


def test_replay_needs_a_selection(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no messages are selected"):
        ReplayOptions(topic="a", target_topic="b")
    with pytest.raises(OptionError, match="sent to itself"):
        ReplayOptions(topic="a", target_topic="a", keys=("k",))
    with pytest.raises(OptionError, match="is not before"):
        ReplayOptions(topic="a", target_topic="b", from_time="5", to_time="5")
    file = tmp_path / "keys"
    file.write_text("k2\n\n k3 \n")
    options = ReplayOptions(topic="a", target_topic="b", keys=("k1",), keys_file=str(file))
    assert options.all_keys() == ("k1", "k2", "k3")
    file.write_text("\n")
    with pytest.raises(OptionError, match="has no key"):
        options.all_keys()
    file.unlink()
    with pytest.raises(OptionError, match="cannot be read"):
        options.all_keys()


def _load(**more: object) -> LoadOptions:
    settings = {"path": "in", "topic": "a", "body": "x", "run": RunOptions(checkpoint="c"), **more}
    return LoadOptions(**settings)  # type: ignore[arg-type]


def test_load_needs_one_body_and_one_way_to_end() -> None:
    for wrong in ({"body": None}, {"body_json": True}):
        with pytest.raises(OptionError, match="either body"):
            _load(**wrong)
    with pytest.raises(OptionError, match="checkpoint is missing"):
        _load(run=RunOptions())
    with pytest.raises(OptionError, match="watch and once"):
        _load(watch=True, run=RunOptions(once=True, checkpoint="c"))
    with pytest.raises(OptionError, match="interval of watch"):
        _load(run=RunOptions(every=1, checkpoint="c"))
    with pytest.raises(OptionError, match="leaves no files"):
        _load(batch_files_max=0)
    assert _load(keys=("a,b", "c")).mapping().keys == ("a", "b", "c")


def test_names_show_the_format(tmp_path: Path) -> None:
    assert format_of("s3://x/orders.jsonl") == "json"
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.parquet").touch()
    assert format_of(str(tmp_path)) == "parquet"
    (tmp_path / "b.csv").touch()
    with pytest.raises(OptionError, match="show csv, parquet; give"):
        format_of(str(tmp_path))
    with pytest.raises(OptionError, match="show none; give"):
        format_of("orders.txt")


def test_package_exports_its_names() -> None:
    aliases = {"Moment": "Progress"}
    for name in pipelines.__all__:
        assert getattr(pipelines, name).__name__ == aliases.get(name, name)
    with pytest.raises(AttributeError, match="no attribute 'run_nothing'"):
        _ = pipelines.run_nothing
