"""Each guard counts both paths: with the twins in Python, and with the native ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.native_part import require_native_part

if TYPE_CHECKING:
    from tests.guards.count import Twins


@pytest.fixture(params=["pure", "native"])
def twins(request: pytest.FixtureRequest) -> Twins:
    """Return which path is counted; the native one is skipped where it is not built."""
    chosen: Twins = request.param
    if chosen == "native":
        require_native_part()
    return chosen
