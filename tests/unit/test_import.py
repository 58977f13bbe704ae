"""The public names of `import downrange`, and which modules it loads only on first use."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import downrange
from downrange import errors, options

SOURCE = Path(downrange.__file__)


def _modules_after(code: str) -> set[str]:
    """Return the modules that a new interpreter has loaded after some code."""
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys, json\nprint(json.dumps(list(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(result.stdout))


def _lazy_imports() -> dict[str, str]:
    """Return name -> module of the imports for type checkers."""
    tree = ast.parse(SOURCE.read_text())
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    return {
        alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_importing_the_package_loads_no_client_and_no_server() -> None:
    loaded = _modules_after("import downrange")
    ours = {name for name in loaded if name.startswith("downrange.")}
    assert ours <= {
        *("downrange.errors", "downrange.model", "downrange.options", "downrange.checks"),
        *("downrange.addresses", "downrange.options.clients", "downrange.options.servers"),
        *("downrange.wire", "downrange.wire.limits", "downrange.wire.system_names"),
    }
    assert loaded.isdisjoint({"asyncio", "concurrent", "logging", "socket", "ssl"})
    assert loaded.isdisjoint({"lz4", "zstandard", "uvloop", "click", "rich", "pyspark"})
    assert loaded.isdisjoint({"typer", "pydantic"})


def test_producer_loads_no_server_and_no_extra() -> None:
    loaded = _modules_after("import downrange\ndownrange.Producer, downrange.MessageTemplate")
    assert "downrange.client._sync.producer" in loaded
    parts = {name.split(".")[1] for name in loaded if name.startswith("downrange.")}
    assert parts.isdisjoint(
        {"server", "store", "broker", "nameserver", "handling", "embedded", "cli"}
    )
    assert loaded.isdisjoint({"uvloop", "click", "typer", "rich", "pyspark", "pyarrow", "pydantic"})
    assert loaded.isdisjoint({"yaml", "python_socks", "pytest"})


def _printed(code: str) -> str:
    """Return what a program without a logging set-up prints on standard error."""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return result.stderr


@pytest.mark.parametrize("logger", ["server", "broker", "nameserver", "access", "metrics"])
def test_servers_print_nothing_in_a_program_that_has_set_up_no_logging(logger: str) -> None:
    code = "import logging, downrange.server, downrange.client"
    assert _printed(f"{code}\nlogging.getLogger('downrange.{logger}').error('text')") == ""


def test_every_logger_of_the_servers_is_silent() -> None:
    names = {
        name
        for path in (SOURCE.parent / "server").rglob("*.py")
        for name in re.findall(r'getLogger\("downrange\.(\w+)"\)', path.read_text())
    }
    assert names == {"server", "broker", "nameserver", "access", "metrics"}


def test_errors_of_clients_are_printed_in_a_program_that_has_set_up_no_logging() -> None:
    code = "import logging, downrange.server, downrange.client"
    log = "logging.getLogger('downrange.client')"
    printed = _printed(f"{code}\n{log}.info('news')\n{log}.warning('slow')\n{log}.error('wrong')")
    assert printed.split() == ["slow", "wrong"]


def test_every_public_name_can_be_had() -> None:
    assert len(set(downrange.__all__)) == len(downrange.__all__)
    for name in downrange.__all__:
        value = getattr(downrange, name)
        assert getattr(value, "__name__", name) == name
        assert value is getattr(downrange, name)


def test_names_that_are_loaded_late_are_those_that_type_checkers_see() -> None:
    assert _lazy_imports() == downrange._HOMES
    assert downrange._HOMES.keys() <= set(downrange.__all__)


def test_every_error_and_every_setting_is_public() -> None:
    classes = {
        name: value
        for module in (errors, options)
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__.startswith("downrange.")
    }
    assert len(classes) > 50
    assert classes.keys() <= set(downrange.__all__)


def test_dir_names_what_is_not_loaded_yet() -> None:
    code = "import downrange\nassert {'Cluster', 'Message'} <= set(dir(downrange))"
    assert "downrange.embedded" not in _modules_after(code)


def test_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'downrange' has no attribute 'Produzer'"):
        downrange.Produzer  # type: ignore[attr-defined]  # noqa: B018  # pyright: ignore
