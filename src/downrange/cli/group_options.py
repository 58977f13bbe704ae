"""Arguments and options that the commands of `group` and `dlq` share."""

from __future__ import annotations

from typing import Final

import click

from downrange.cli.completion import complete_groups
from downrange.cli.parameters import argument

GROUP: Final = argument("group", help="Name of the consumer group.", shell_complete=complete_groups)
JSON: Final = click.option("--json", "as_json", is_flag=True, help="One JSON document.")
#: For a command that prints JSON lines in any case: `--json` is accepted, and changes nothing.
JSON_LINES: Final = click.option(
    "--json", is_flag=True, expose_value=False, help="JSON lines, as without it."
)
CLUSTER: Final = click.option(
    "--cluster", metavar="NAME", help="Name of the cluster, if there are several."
)
