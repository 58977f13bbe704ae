"""Checks of options and arguments. Each error names the argument, its value, and what is expected.

One rule: a check that runs for every message compares the exact class first, and calls a function
of this module only when that fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from downrange.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: The longest timeout of a call, in seconds: 23 days. Sockets count in milliseconds, in 32 bits.
TIMEOUT_MAX: Final = 2_000_000
#: Characters of a value that an error shows.
_SHOWN_MAX: Final = 60


def wrong_type(name: str, value: object, expected: str, hint: str = "") -> OptionError:
    """Return the error for an argument of the wrong type.

    Args:
        name: The argument.
        value: Its value; only values of simple types are shown, others may hold secrets.
        expected: What is expected, with its article.
        hint: The next step, if it is not obvious.
    """
    text = f"{name} must be {expected}, not {shown(value)}"
    return OptionError(f"{text}; {hint}" if hint else text)


def shown(value: object) -> str:
    """Return a value of a simple type, or the name of any other type."""
    kind = type(value)
    if value is None:
        return "None"
    if kind not in (bool, int, float, str, bytes):
        return f"an object of type {kind.__qualname__}"
    text = repr(value)
    if len(text) > _SHOWN_MAX:
        text = f"{text[:_SHOWN_MAX]}…"
    return f"{text} ({kind.__name__})"


# ---- types ---------------------------------------------------------------------------------------


def check_type(
    name: str, value: object, kind: type | tuple[type, ...], expected: str, hint: str = ""
) -> None:
    """Refuse a value that is not of one of the types."""
    if not isinstance(value, kind):
        raise wrong_type(name, value, expected, hint)


def check_text(name: str, value: object) -> None:
    """Refuse a value that is not a str."""
    if not isinstance(value, str):
        raise wrong_type(name, value, "a str")


def check_optional_text(name: str, value: object) -> None:
    """Refuse a value that is neither a str nor None."""
    if value is not None:
        check_text(name, value)


def check_name(name: str, value: object) -> None:
    """Refuse a value that is not a str, or blank."""
    check_text(name, value)
    assert isinstance(value, str)
    if not value.strip():
        raise OptionError(f"{name}={value!r} is blank; give a name")


def check_texts(name: str, values: object) -> tuple[str, ...]:
    """Return an iterable of str as a tuple; a single str is refused."""
    if isinstance(values, str | bytes):
        raise wrong_type(name, values, "a list of str", f"write [{values!r}]")
    texts = tuple(iterated(name, values, "a list of str"))
    for text in texts:
        if not isinstance(text, str):
            raise wrong_type(f"each of {name}", text, "a str")
    return texts


def iterated(name: str, values: Any, expected: str) -> Iterator[Any]:
    """Return an iterator, or raise the error for a value that has none."""
    try:
        iterator: Iterator[Any] = iter(values)
    except TypeError:
        raise wrong_type(name, values, expected) from None
    return iterator


def check_flag(name: str, value: object) -> None:
    """Refuse a value that is not True or False."""
    if value is not True and value is not False:
        raise wrong_type(name, value, "True or False")


def check_whole(name: str, value: object) -> None:
    """Refuse a value that is not an int; True and False are not numbers here."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_type(name, value, "an int")


def check_number(name: str, value: object, expected: str = "a number") -> None:
    """Refuse a value that is neither an int nor a float; True and False are not numbers here."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        hint = "give its total_seconds()" if hasattr(value, "total_seconds") else ""
        raise wrong_type(name, value, expected, hint)


# ---- values --------------------------------------------------------------------------------------


def check_at_least(smallest: int, name: str, value: float) -> None:
    """Refuse what is not a finite number, and a number below the smallest allowed one."""
    check_number(name, value)
    if not smallest <= value < float("inf"):  # NaN compares as false
        problem = f"is less than {smallest}" if value < smallest else "is not a finite number"
        raise OptionError(f"{name}={value} {problem}")


def check_count(smallest: int, name: str, value: int) -> None:
    """Refuse what is not an int, and a number below the smallest allowed one."""
    check_whole(name, value)
    if value < smallest:
        raise OptionError(f"{name}={value} is less than {smallest}")


def check_between(smallest: int, largest: int, name: str, value: int) -> None:
    """Refuse what is not an int, and a number outside of a range."""
    check_whole(name, value)
    if not smallest <= value <= largest:
        raise OptionError(f"{name}={value} is not between {smallest} and {largest}")


def check_positive(name: str, seconds: float) -> None:
    """Refuse a time span that is not above 0 and finite."""
    check_number(name, seconds, "a number of seconds")
    if not 0 < seconds < float("inf"):
        raise OptionError(f"{name}={seconds} must be a time span in seconds, above 0 and finite")


def check_timeout(timeout: float, name: str = "timeout") -> None:
    """Refuse a timeout of a call that is not above 0, or too long for a socket."""
    check_positive(name, timeout)
    if timeout > TIMEOUT_MAX:
        raise _too_long(name, timeout)


def check_wait(name: str, seconds: float) -> None:
    """Refuse a waiting time that is below 0, or too long; 0 means not to wait."""
    check_number(name, seconds, "a number of seconds")
    if not seconds >= 0:
        raise OptionError(f"{name}={seconds} must be a time span in seconds, 0 or above")
    if seconds > TIMEOUT_MAX:
        raise _too_long(name, seconds)


def _too_long(name: str, seconds: float) -> OptionError:
    return OptionError(f"{name}={seconds} is longer than {TIMEOUT_MAX} seconds, 23 days")


def check_one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    """Refuse a value that is not one of the allowed ones."""
    choices = list(allowed)
    if value not in choices or isinstance(value, bool):  # True equals 1
        raise OptionError(f"{name}={value!r} must be one of {', '.join(map(str, choices))}")
