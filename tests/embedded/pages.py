"""Reading the pages of a server with metrics."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import TypeAlias

Labels: TypeAlias = frozenset[tuple[str, str]]

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def get(address: str, path: str) -> tuple[int, str]:
    """Return status and text of a page."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@dataclass(slots=True)
class Metrics:
    """A page of metrics.

    Attributes:
        kinds: Type by name of the family.
        samples: Value by name and labels.
    """

    kinds: dict[str, str] = field(default_factory=dict)
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def value(self, name: str, **labels: str) -> float | None:
        """Return the sum of the samples that have these labels among theirs; None without any."""
        wanted = set(labels.items())
        found = [v for (n, have), v in self.samples.items() if n == name and wanted <= have]
        return sum(found) if found else None

    def label_names(self, name: str) -> set[frozenset[str]]:
        """Return the names of labels that the samples of a name have."""
        return {frozenset(label for label, _ in labels) for n, labels in self.samples if n == name}


def parse(text: str) -> Metrics:
    """Read a page; fail on what Prometheus would refuse."""
    metrics = Metrics()
    family = ""
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in metrics.kinds, f"{name} appears twice"
            metrics.kinds[name] = kind
            family = name
        elif not line.startswith("#"):
            match = _LINE.fullmatch(line)
            assert match is not None, line
            name, labels, value = match[1], match[2] or "", match[3]
            assert name == family or name.rpartition("_")[0] == family, f"{name} in {family}"
            key = (name, frozenset(_LABEL.findall(labels)))
            assert key not in metrics.samples, f"{line} appears twice"
            metrics.samples[key] = float(value)
    return metrics


def metrics_of(address: str) -> Metrics:
    """Return the metrics of a server."""
    status, text = get(address, "/metrics")
    assert status == 200, text
    return parse(text)
