from __future__ import annotations

import click
import pytest

from downrange.cli.doctor import exit_code
from downrange.cli.exit_codes import exit_code_of, exit_on_error, use_option_names
from downrange.client.flows.admin.doctor import Finding, Step
from downrange.errors import (
    CallTimeout,
    ConnectFailed,
    MissingExtra,
    NoNameServer,
    OptionError,
    RocketMQError,
    RouteNotFound,
    SendNotPermitted,
    SendTimedOut,
    SendUnreachable,
    server_error,
)
from downrange.pipelines.stream_run import PipelineFailed


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OptionError("x"), 2),
        (NoNameServer("x"), 3),
        (ConnectFailed("a:1", "x"), 3),
        (CallTimeout("a:1", 1.0), 3),
        (SendUnreachable("t", [], 0.0), 3),
        (SendTimedOut("t", [], 0.0), 3),
        (SendNotPermitted("t", [], 0.0), 4),
        (server_error(16, None, "a:1"), 4),
        (server_error(17, None, "a:1"), 5),
        (server_error(22, None, "a:1"), 5),
        (RouteNotFound("t", ["a:1"], "."), 5),
        (server_error(1, None, "a:1"), 1),
        (PipelineFailed("Spark ended"), 1),
        (PipelineFailed("x", "ZeroDivisionError"), 1),
        (PipelineFailed("no such topic", "RouteNotFound"), 5),
        (PipelineFailed("not you", "NoPermission"), 4),
        (PipelineFailed("refused", "ConnectFailed"), 3),
    ],
)
def test_each_kind_of_error_has_its_exit_code(
    error: RocketMQError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(error) == code
    if code == 2:
        with pytest.raises(click.BadParameter, match="x"), exit_on_error():
            raise error
        return
    with pytest.raises(click.exceptions.Exit) as caught, exit_on_error():
        raise error
    assert caught.value.exit_code == code
    assert capsys.readouterr().err == f"downrange: {use_option_names(str(error))}\n"


def test_a_missing_extra_is_wrong_use() -> None:
    assert exit_code_of(MissingExtra("a pipeline", "spark")) == 2


def test_an_error_names_the_options_of_the_command_line() -> None:
    text = "name its authority's file with TLS(ca=…), or set TLS(check_host=False)"
    assert use_option_names(text) == "name its authority's file with --ca, or set --no-check-host"
    assert "with --timeout," in use_option_names(str(SendTimedOut("t", [], 0.0)))


def test_ctrl_c_ends_a_command_without_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.exceptions.Exit) as caught, exit_on_error():
        raise KeyboardInterrupt
    assert caught.value.exit_code == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        ([], 0),
        (["dns"], 3),
        (["tcp", "route"], 3),
        (["tls"], 3),
        (["answer"], 3),
        (["address"], 3),
        (["access", "tcp"], 4),
        (["route"], 5),
        (["brokers"], 1),
        (["master"], 1),
    ],
)
def test_the_doctor_ends_with_the_code_of_the_first_failure(steps: list[Step], code: int) -> None:
    fine = Finding(name="tcp", target="x", is_ok=True, text="connected")
    failed = [Finding(name=step, target="x", is_ok=False, text="no") for step in steps]
    assert exit_code([fine, *failed]) == code
