"""Build hook of hatchling: puts the native part into a wheel or an editable install.

Without cargo, without the network for its crates, or on a platform that the native part does not
know, the wheel is pure, and one line says so. An install never fails because of it.
`DOWNRANGE_PURE=1` in the environment builds a pure wheel.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))
from scripts import build_native

#: The oldest Python whose stable interface the module uses; `abi3-py311` in native/Cargo.toml.
_PYTHON = "cp311"
_MODULE = "downrange/_native.abi3.so"


class NativePart(BuildHookInterface[Any]):
    """Builds the native part before a wheel is written."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build it, add it to the wheel, and tag the wheel for this platform."""
        if os.environ.get("DOWNRANGE_PURE", "0") not in ("", "0"):
            return
        try:
            module = build_native.build(is_quiet=True)
        except build_native.NotBuilt as error:
            self.app.display_warning(build_native.missing_line(error))
            return
        if version == "editable":
            return  # an editable install imports from src/, where the module is now
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"{_PYTHON}-abi3-{platform}"
        build_data["force_include"][str(module)] = _MODULE
