"""Arguments and options that the commands of `group` and `dlq` share."""

from __future__ import annotations

from typing import Final

import click

from downrange.cli.completion import complete_groups
from downrange.cli.parameters import argument

GROUP: Final = argument("group", help="Name of the consumer group.", shell_complete=complete_groups)
JSON: Final = click.option("--json", "as_json", is_flag=True, help="One JSON document.")
CLUSTER: Final = click.option(
    "--cluster", metavar="NAME", help="Name of the cluster, if there are several."
)
YES: Final = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
