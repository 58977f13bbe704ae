"""Charts as SVG that scales to any width, with labels beside it as HTML text.

The drawing of a chart has no text and is stretched to its width; strokes keep their width. Labels
are HTML, placed by per cent, so that they have the same size on every screen. The values under the
pointer come from one JSON text per chart. For screen readers there are a label and a table.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Final

from downrange.pipelines.trace import formats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from downrange.pipelines.trace.figures import Series, Span
    from downrange.pipelines.trace.outages import Outage

_WIDTH: Final = 1000.0
_HEIGHT: Final = 240.0
_TICKS_MAX: Final = 6
#: Ticks of a logarithmic axis in milliseconds: 1 ms to 100 days.
_DURATION_MARKS: Final = (1, 10, 100, 1e3, 1e4, 6e4, 6e5, 3.6e6, 3.6e7, 8.64e7, 8.64e8, 8.64e9)
_MARKS_MAX: Final = 4
#: Durations are whole milliseconds. A logarithmic axis has no zero: 0 means less than 1 ms, and is
#: drawn here.
_BELOW_ONE: Final = 0.5
_STEP_SECONDS: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800),
)


#: From this part of the axis on, a label right of its tick might not fit on a phone.
_LATE: Final = 0.78
#: With outages of more brokers, the legend does not name them.
_NAMED_MAX: Final = 3


def line_chart(
    span: Span,
    series: Sequence[Series],
    *,
    title: str,
    note: str,
    value: Callable[[float | None], str],
    outages: Sequence[Outage] = (),
    is_logarithmic: bool = False,
    style: str = "hue",
) -> str:
    """Draw lines over time.

    Args:
        span: The time.
        series: The lines; their names are untrusted text.
        title: The title.
        note: A hint for the reader.
        value: Formats a value.
        outages: Drawn as bands behind the lines.
        is_logarithmic: Whether the vertical axis is logarithmic, for durations in milliseconds.
        style: The colours: `hue` for names, `rank` for percentiles.
    """
    drawn = [v for one in series for v in one.values if v is not None]
    top = max(drawn, default=0.0)
    ticks = _log_ticks(min(drawn, default=1.0), top) if is_logarithmic else _ticks(top)
    low, most = ticks[0] or _BELOW_ONE, max(ticks[-1], top)

    def height(v: float) -> float:
        if is_logarithmic:
            return _HEIGHT * (1 - math.log(max(v, low) / low) / math.log(most / low))
        return _HEIGHT * (1 - max(v, 0) / most)

    lines = [
        f'<path class="line {style}-{index}" d="{_path(one.values, height)}"/>'
        for index, one in enumerate(series)
    ]
    lines.reverse()  # the first line is drawn last, on top
    rules = "".join(
        f'<path class="rule" d="M0 {height(tick):.1f}H{_WIDTH:.0f}"/>' for tick in ticks
    )
    y_labels = "".join(
        f'<span style="top:{height(tick) / _HEIGHT:.2%}">{value(tick)}</span>' for tick in ticks
    )
    legend = "".join(
        f'<li><i class="swatch {style}-{index}"></i>{formats.name(one.name)}</li>'
        for index, one in enumerate(series)
    )
    legend += _outage_legend(outages)
    peak = formats.safe(formats.bare(value(top)))
    drawing = (
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" preserveAspectRatio="none" role="img" '
        f'aria-label="{formats.safe(title)}: {len(series)} lines, highest value {peak}">'
        f"{_bands(span, outages, _HEIGHT)}{rules}{''.join(lines)}</svg>"
    )
    shown = [[None if v is None else formats.bare(value(v)) for v in one.values] for one in series]
    names = [one.name for one in series]
    return (
        f'<figure class="chart">{_caption(title, note)}<ul class="legend">{legend}</ul>'
        f"<div class=\"plot\" data-chart='{_chart_json(span, names, shown, style, outages)}'>"
        f'<div class="y" aria-hidden="true">{y_labels}</div>'
        f'<div class="area">{drawing}<div class="cursor" hidden></div></div>'
        f"{_time_axis(span)}</div>{_table(span, names, shown)}</figure>"
    )


def heat_map(
    span: Span,
    series: Sequence[Series],
    *,
    title: str,
    note: str,
    value: Callable[[float | None], str],
    outages: Sequence[Outage] = (),
) -> str:
    """Draw a row of cells for each name: darker for more, hatched for none.

    An outage is a band in the row of its broker.
    """
    top = max((v for one in series for v in one.values if v), default=1.0)
    width = _WIDTH / span.count
    rows: list[str] = []
    for one in series:
        cells = "".join(
            f'<rect x="{index * width:.2f}" width="{width:.2f}" height="10" '
            f'style="--part:{0.15 + 0.85 * (v / top):.1%}"/>'
            for index, v in enumerate(one.values)
            if v
        )
        total = formats.count(sum(v or 0 for v in one.values))
        shown = [[formats.bare(value(v)) for v in one.values]]
        of_row = [outage for outage in outages if outage.broker == one.name]
        facts = _chart_json(span, [one.name], shown, "hue", of_row)
        rows.append(
            f'<div class="heat-name">{formats.name(one.name)}</div>'
            f"<div class=\"heat-row\" data-chart='{facts}'>"
            f'<div class="area"><svg viewBox="0 0 {_WIDTH:.0f} 10" preserveAspectRatio="none" '
            f'role="img" aria-label="{formats.safe(one.name)}: {total} messages in all">'
            f'{_bands(span, of_row, 10)}{cells}</svg><div class="cursor" hidden></div></div></div>'
        )
    names = [one.name for one in series]
    shown = [[formats.bare(value(v)) for v in one.values] for one in series]
    outage = '<i class="outage"></i>outage' if outages else ""
    scale = (
        f'<p class="scale">{outage}<i class="empty"></i>none<i class="ramp"></i>'
        f"up to {value(top)}</p>"
    )
    return (
        f'<figure class="chart heat">{_caption(title, note)}'
        f'<div class="heat-rows">{"".join(rows)}'
        f'<div></div><div class="plot">{_time_axis(span)}</div></div>{scale}'
        f"{_table(span, names, shown)}</figure>"
    )


def empty_chart(title: str, why: str) -> str:
    """Return a chart without data, with the reason."""
    return f'<figure class="chart">{_caption(title, "")}<p class="empty-state">{why}</p></figure>'


def _caption(title: str, note: str) -> str:
    shown = f"<small>{formats.safe(note)}</small>" if note else ""
    return f"<figcaption><strong>{formats.safe(title)}</strong>{shown}</figcaption>"


def _path(values: Sequence[float | None], height: Callable[[float], float]) -> str:
    """Return the line through the middles of the buckets, interrupted at missing values."""
    width = _WIDTH / max(len(values), 1)
    parts: list[str] = []
    is_open = False
    for index, value in enumerate(values):
        if value is None:
            is_open = False
            continue
        x, y = (index + 0.5) * width, height(value)
        parts.append(f"{'L' if is_open else 'M'}{x:.1f} {y:.1f}")
        is_alone = not is_open and (index + 1 == len(values) or values[index + 1] is None)
        if is_alone:
            parts.append("h.1")  # a dot, drawn by the round line caps
        is_open = True
    return "".join(parts)


def _ticks(top: float) -> list[float]:
    if top <= 0:
        return [0.0, 1.0]  # an axis for values that are all zero
    step = formats.round_up(top / 4)
    return [step * index for index in range(math.ceil(top / step - 1e-9) + 1)]


def _bands(span: Span, outages: Sequence[Outage], height: float) -> str:
    """Return the outages as bands, each over the buckets that it takes."""
    length = span.end_ms - span.begin_ms
    parts: list[str] = []
    for one in outages:
        left = max(one.begin_ms - span.begin_ms, 0) / length * _WIDTH
        right = min(one.end_ms - span.begin_ms, length) / length * _WIDTH
        parts.append(
            f'<rect class="outage" x="{left:.1f}" width="{right - left:.1f}" height="{height:g}"/>'
        )
    return "".join(parts)


def _outage_legend(outages: Sequence[Outage]) -> str:
    brokers = list(dict.fromkeys(one.broker for one in outages))
    if not brokers:
        return ""
    names = ", ".join(formats.name(broker) for broker in brokers)
    who = names if len(brokers) <= _NAMED_MAX else f"one of {len(brokers)} brokers"
    return f'<li><i class="outage"></i>outage of {who}</li>'


def _log_ticks(least: float, top: float) -> list[float]:
    """Return the ticks of durations, from the lowest value on; on a long axis not all of them.

    The first is the last mark that no value is below. If it is 0, some values are below 1 ms.
    """
    low = max((mark for mark in _DURATION_MARKS if mark <= least), default=0.0)
    marks = (mark for mark in _DURATION_MARKS if mark >= top and mark > low)
    most = next(marks, max(top, 10 * low))
    # On a long axis, 1 ms would be too near to the values below it.
    first = _DURATION_MARKS[1] if not low and top > _DURATION_MARKS[2] else 0.0
    kept = [*(mark for mark in _DURATION_MARKS if max(low, first) <= mark < most), most]
    kept = [mark for mark in kept if mark > low]
    stride = -(-len(kept) // _MARKS_MAX)
    return [low, *kept[::-1][::stride][::-1]]


def _time_axis(span: Span) -> str:
    length = span.bucket_ms * span.count
    steps = [seconds * 1000 for seconds in _STEP_SECONDS]
    step = next((s for s in steps if length / s <= _TICKS_MAX), None)
    if step is None:
        step = -(-length // (_TICKS_MAX * 86_400_000)) * 86_400_000
    first = -(-span.begin_ms // step) * step
    labels: list[str] = []
    for index, at in enumerate(range(first, span.end_ms, step)):
        left = (at - span.begin_ms) / length
        if left > 0.96:
            break
        # Near the end a label is left of its tick, or a narrow page would scroll sideways.
        marks = ("odd" if index % 2 else "") + (" late" if left > _LATE else "")
        time = formats.clock(at, step)
        labels.append(f'<span class="{marks.strip()}" style="left:{left:.2%}">{time}</span>')
    return f'<div class="x" aria-hidden="true">{"".join(labels)}</div>'


def _chart_json(
    span: Span,
    names: Sequence[str],
    shown: Sequence[Sequence[str | None]],
    style: str,
    outages: Sequence[Outage],
) -> str:
    """Return the data for the values under the pointer, escaped for single quotes."""
    facts = {
        "begin": span.begin_ms,
        "bucket": span.bucket_ms,
        "names": list(names),
        "values": shown,
        "style": style,
        "outages": [[one.begin_ms, one.end_ms, one.broker] for one in outages],
    }
    text = json.dumps(facts, separators=(",", ":"))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("'", "&#39;")


def _table(span: Span, names: Sequence[str], shown: Sequence[Sequence[str | None]]) -> str:
    """Return the chart's values as a collapsed table."""
    head = "".join(f"<th>{formats.name(name)}</th>" for name in names)
    rows: list[str] = []
    for index in range(span.count):
        values = [one[index] for one in shown]
        texts = [formats.NONE if value is None else formats.safe(value) for value in values]
        cells = "".join(f"<td>{text}</td>" for text in texts)
        at = formats.timestamp(span.begin_ms + index * span.bucket_ms, span.bucket_ms)
        rows.append(f"<tr><th>{at}</th>{cells}</tr>")
    return (
        '<details class="values"><summary>Show the values</summary><div class="scroll"><table>'
        f"<thead><tr><th>From (UTC)</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
        "</table></div></details>"
    )
