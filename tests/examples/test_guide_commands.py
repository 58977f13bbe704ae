"""The commands of the guides about groups run as printed, and those of tables exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from downrange.cli import app
from downrange.embedded import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
PAGES = ("operating-groups", "coming-from-mqadmin")
_SHELL = re.compile(r"^```shell\n(.*?)^```", re.DOTALL | re.MULTILINE)
#: All commands of `mqadmin` 5.5.0.
MQADMIN = re.findall(
    r"\w+",
    """
addBroker addWritePerm allocateMQ brokerConsumeStats brokerStatus checkMsgSendRT
checkRocksdbCqWriteProgress cleanBrokerMetadata cleanExpiredCQ cleanUnusedTopic cloneGroupOffset
clusterList clusterRT consumeMessage consumerConnection consumerProgress consumerStatus copyAcl
copyUser createAcl createUser deleteAcl deleteExpiredCommitLog deleteKvConfig deleteSubGroup
deleteTopic deleteUser dumpCompactionLog electMaster exportConfigs exportMetadata
exportMetadataInRocksDB exportMetrics exportPopRecord getAcl getBrokerConfig getBrokerEpoch
getBrokerLiteInfo getColdDataFlowCtrInfo getConsumerConfig getControllerConfig
getControllerMetaData getLiteClientInfo getLiteGroupInfo getLiteTopicInfo getNamesrvConfig
getParentTopicInfo getSyncStateSet getUser haStatus listAcl listUser printMsg printMsgByQueue
producer producerConnection queryCq queryMsgById queryMsgByKey queryMsgByOffset
queryMsgByUniqueKey queryMsgTraceById remappingStaticTopic removeBroker
removeColdDataFlowCtrGroupConfig resetMasterFlushOffset resetOffsetByTime rocksDBConfigToJson
sendMessage sendMsgStatus setCommitLogReadAheadMode setConsumeMode skipAccumulatedMessage
startMonitoring statsAll switchTimerEngine topicClusterList topicList topicRoute topicStatus
triggerLiteDispatch updateAcl updateBrokerConfig updateColdDataFlowCtrGroupConfig
updateControllerConfig updateKvConfig updateNamesrvConfig updateOrderConf updateStaticTopic
updateSubGroup updateSubGroupList updateTopic updateTopicList updateTopicPerm updateUser
wipeWritePerm
""",
)


def _lines(page: str) -> Iterator[str]:
    for block in _SHELL.findall((GUIDES / f"{page}.md").read_text()):
        yield from block.splitlines()


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_the_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Cluster() as cluster:
        for line in _lines(page):
            words = shlex.split(line, comments=True)
            target = words[words.index(">") + 1] if ">" in words else None
            arguments = words[1 : words.index(">") if target else None]
            result = CliRunner().invoke(app, arguments, env={"NAMESRV_ADDR": cluster.name_server})
            assert (words[0], result.exit_code) == ("downrange", 0), f"{line}\n{result.output}"
            if target is not None:
                Path(target).write_text(result.stdout)


def _command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that words name, and the options among the rest."""
    command: click.Command = app
    context = click.Context(app)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words.pop(0))
        assert found is not None
        command = found
    return command, [word.split("=")[0] for word in words if word.startswith("--")]


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_the_page_mentions_exist(page: str) -> None:
    text = (GUIDES / f"{page}.md").read_text()
    mentioned = re.findall(r"`downrange ([^`]+)`", text)
    assert mentioned
    for line in mentioned:
        command, options = _command_of(line.split())
        known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        assert set(options) <= known | {"--help"}, line


def test_guide_names_every_command_of_mqadmin() -> None:
    text = (GUIDES / "coming-from-mqadmin.md").read_text()
    named = {word for row in re.findall(r"^\| (`[^|]*) \|", text, re.M) for word in row.split("`")}
    assert set(MQADMIN) <= named
