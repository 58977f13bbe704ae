"""The Python of README and guides runs as printed."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import downrange as mq
from tests.examples.pages import blocks_of, topics_of

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
PAGES = [page for page in GUIDES if blocks_of(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_of_the_page_runs(page: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.examples.pages", str(page)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=ROOT,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_no_two_guides_use_the_same_topic() -> None:
    """A reader who tries one guide after the other must not meet the messages of another one."""
    users: dict[str, list[str]] = {}
    for page in GUIDES:
        for topic in topics_of(page):
            users.setdefault(topic, []).append(page.stem)
    assert {topic: pages for topic, pages in users.items() if len(pages) > 1} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_topics_of_the_page_are_found(page: Path) -> None:
    assert topics_of(page)


def test_topics_are_found_in_all_kinds_of_code(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`downrange send no`\n"
        '```python\nmq.Message("a", b"x")\nMessage(\n    "b",\n)\nconsumer.assign("RMQ_SYS_X")\n'
        'template.convert_and_send("c:paid", 1)\n.option("subscribe", "d")\ntopics=("e", "f"),\n'
        "```\n"
        '```toml\ntopics = ["g", "h"]\ntopics = { i = "PUB|SUB", j = "PUB" }\n```\n'
        "```sh\ndownrange tail k | downrange send l-m\ndownrange topic create n\n"
        "downrange topic list --all\ndownrange pipeline lake o p --output q\n"
        "downrange pipeline load x.csv --topic r\n"
        "downrange pipeline replay s --target-topic t\n```\n"
    )
    assert topics_of(page) == {*"abcdefghijk", "l-m", *"noprst"}


def test_guide_about_tests_shows_a_retry_that_happens() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.examples.pages", str(ROOT / "docs/guides/testing.md")],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        cwd=ROOT,
    )
    assert re.fullmatch(r"[2-9] attempts; stored twice\? True\n", result.stdout)


def test_tests_of_the_guide_about_tests_succeed(pytester: pytest.Pytester) -> None:
    """With the function of the first block, which is the code under test."""
    page = ROOT / "docs/guides/testing.md"
    code = blocks_of(page)[0][1].split("def test_")[0]
    code += "".join(text for _, text in blocks_of(page, "pytest"))
    pytester.makepyfile(code)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")
    result = pytester.runpytest_subprocess("-W", "error", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=len(re.findall(r"^(?:async )?def test_", code, re.MULTILINE)))


def test_fragments_are_left_out_and_lines_are_counted(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "one\n```python\na = 1\n```\n<!-- fragment -->\n```python\nb = ...\n```\n"
        "```sh\nc\n```\n```python\nd = 2\n```\n"
    )
    assert blocks_of(page) == [(2, "a = 1\n"), (12, "d = 2\n")]


@pytest.mark.parametrize(
    "options",
    [
        mq.ProducerOptions,
        mq.ClientOptions,
        mq.FaultTolerance,
        mq.AutoBatch,
        mq.Trace,
        mq.PullOptions,
        mq.ConsumerOptions,
        mq.SimpleOptions,
    ],
)
def test_guide_for_java_users_names_every_option(options: type[Any]) -> None:
    page = (ROOT / "docs/guides/coming-from-java.md").read_text()
    words = set(re.findall(r"\w+", page))
    assert {field.name for field in dataclasses.fields(options)} <= words


@pytest.mark.parametrize("page", sorted((ROOT / "docs/guides").glob("*.md")), ids=lambda p: p.stem)
def test_links_of_the_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target
