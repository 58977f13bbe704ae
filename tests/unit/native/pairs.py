"""Compare a native function with its twin in Python: same values, same errors.

    from tests.unit.native.pairs import assert_same, native

    @given(st.text())
    def test_java_hash(text: str) -> None:
        assert_same(pure_java_hash, native.java_hash, text)

A test file that imports `native` from here is skipped where the native part is not built, with the
reason. With DOWNRANGE_REQUIRE_NATIVE=1 that is a failure. Hostile bytes for both twins come from
the fuzzer, too: tests/fuzz/pairs.py.
"""

from __future__ import annotations

from tests.support.native_part import Outcome, assert_same, outcome, require_native_part

require_native_part()

from downrange import _native as native  # noqa: E402 - only where there is one

__all__ = ["Outcome", "assert_same", "native", "outcome"]
