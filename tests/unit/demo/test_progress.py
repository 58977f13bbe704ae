from __future__ import annotations

import io

from rich.console import Console

from downrange.demo.progress import ProgressDisplay


def _shown(*, is_terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=120, color_system=None)
    with ProgressDisplay(console).stage("Trade") as stage:
        bar = stage.bar("orders", 10)
        bar.update(4, "1 retried")
        stage.log("kill -9")
        bar.update(9)
        stage.done("9 sent")
    return out.getvalue()


def test_pipe_gets_lines_and_no_bars() -> None:
    title, event, end = _shown(is_terminal=False).splitlines()
    assert title == "Trade"
    assert event == "  kill -9"
    assert end.startswith("  9 sent (")
    assert "\x1b" not in end


def test_terminal_gets_bars_that_end_full_and_then_the_end() -> None:
    shown = _shown(is_terminal=True)
    assert "orders" in shown
    assert "9/9" in shown
    assert shown.rstrip().endswith("9 sent")
