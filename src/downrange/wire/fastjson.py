"""JSON as Java's fastjson reads and writes it, which is not always standard JSON.

Fastjson writes number keys of maps unquoted (`{0:"a"}`), object keys as objects
(`{{"topic":"T"}:5}`), and an object that occurs twice as a reference (`{"$ref":"$.a"}`). It reads
single quotes, comments, trailing commas and unquoted names. Standard JSON takes the fast path
through msgspec; only text that msgspec refuses goes through the tolerant reader below.

One rule: reading is bounded. Nesting ends at `DEPTH_MAX`, and memory use is proportional to the
text.
"""

from __future__ import annotations

import re
from typing import Any, Final, NoReturn

import msgspec

from downrange.errors import MalformedBody, Unencodable

#: The deepest nesting that is read. RocketMQ bodies have about ten levels at most.
DEPTH_MAX: Final = 100

_encode: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder().decode


class ObjectKey(dict[Any, Any]):
    """A JSON object as the key of a map: a dictionary that can be hashed."""

    def __hash__(self) -> int:  # type: ignore[override]  # unlike a dict, these never change
        return hash(frozenset((repr(name), repr(value)) for name, value in self.items()))


def loads(data: bytes) -> Any:
    """Read JSON in any form that Java writes.

    Objects become dictionaries with keys that are strings, numbers or `ObjectKey`s. The last of two
    equal keys wins. References are resolved.

    Raises:
        MalformedBody: The bytes are not JSON in any of these forms; the text names the position.
    """
    try:
        value = _decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        value = _Reader(_text_of(data)).read_document()
    if b"$ref" in data:
        value = _ReferenceResolver(value).resolve()
    if data.count(b"[") + data.count(b"{") > DEPTH_MAX:
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    """Refuse values that the fast path, or references to references, nested too deeply."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEPTH_MAX):
        level = [
            item
            for holder in level
            for item in (holder.values() if type(holder) is dict else holder)
            if type(item) is dict or type(item) is list
        ]
    if level:
        raise MalformedBody("JSON", f"nested deeper than {DEPTH_MAX}")


def dumps(value: Any) -> bytes:
    """Write JSON that fastjson 1 and 2 read: strict JSON, except for objects as map keys.

    Raises:
        Unencodable: A string holds half a surrogate pair, or a value has no JSON form.
    """
    try:
        return _encode(value)
    except UnicodeEncodeError as error:
        raise Unencodable("JSON text", str(error)) from error
    except TypeError:
        return _dumps_with_object_keys(value)


def _dumps_with_object_keys(value: Any) -> bytes:
    if isinstance(value, dict):
        pairs = sorted((_dumps_key(key), dumps(item)) for key, item in value.items())
        return b"{%b}" % b",".join(b"%b:%b" % pair for pair in pairs)
    if isinstance(value, list | tuple):
        return b"[%b]" % b",".join(dumps(item) for item in value)
    raise Unencodable("JSON value", f"{type(value).__name__} has no JSON form")


def _dumps_key(key: Any) -> bytes:
    if isinstance(key, dict):
        return dumps(dict(key))
    return b'"%d"' % key if isinstance(key, int) else dumps(key)


def _text_of(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedBody(f"JSON byte {error.start}", "not UTF-8") from error


_BLANK: Final = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_PLAIN_STRING: Final = re.compile(r"""[^"'\\]*""")
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_NAME: Final = re.compile(r"[A-Za-z_$][\w$]*")
_ESCAPES: Final = {
    '"': '"',
    "'": "'",
    "\\": "\\",
    "/": "/",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "0": "\0",
}
_WORDS: Final = {"true": True, "false": False, "null": None}
#: The longest number that is read; Python's own limit for integers is 4,300 digits.
_NUMBER_CHARS_MAX: Final = 400


class _Reader:
    """A recursive-descent reader over one text; `at` is the next character to read."""

    __slots__ = ("at", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def read_document(self) -> Any:
        value = self._read_value(0)
        if self._peek():
            self._fail("there is text after the value")
        return value

    def _read_value(self, depth: int) -> Any:
        match self._peek():
            case "{":
                return self._read_object(depth)
            case "[":
                return self._read_array(depth)
            case '"' | "'":
                return self._read_string()
            case _:
                return self._read_scalar()

    def _read_object(self, depth: int) -> dict[Any, Any]:
        self._descend(depth)
        members: dict[Any, Any] = {}
        while self._peek() != "}":
            key = self._read_key(depth + 1)
            self._expect(":")
            members[key] = self._read_value(depth + 1)
            if self._peek() != "}":
                self._expect(",")
        self.at += 1
        return members

    def _read_key(self, depth: int) -> Any:
        match self._peek():
            case "{":
                return ObjectKey(self._read_object(depth))
            case '"' | "'":
                return self._read_string()
            case _:
                if (found := _NAME.match(self.text, self.at)) is not None:
                    self.at = found.end()
                    return found[0]
                return self._read_number()

    def _read_array(self, depth: int) -> list[Any]:
        self._descend(depth)
        items: list[Any] = []
        while self._peek() != "]":
            items.append(self._read_value(depth + 1))
            if self._peek() != "]":
                self._expect(",")
        self.at += 1
        return items

    def _read_string(self) -> str:
        quote = self.text[self.at]
        self.at += 1
        parts: list[str] = []
        while True:
            found = _PLAIN_STRING.match(self.text, self.at)
            assert found is not None  # it matches the empty string
            parts.append(found[0])
            self.at = found.end()
            mark = self.text[self.at : self.at + 1]
            if not mark:
                self._fail("a string does not end")
            self.at += 1
            if mark == quote:
                return _join_surrogates("".join(parts))
            parts.append(self._read_escape() if mark == "\\" else mark)

    def _read_escape(self) -> str:
        letter = self.text[self.at : self.at + 1]
        self.at += 1
        digits = {"u": 4, "x": 2}.get(letter)
        if digits is None:
            if letter not in _ESCAPES:
                self._fail(f"unknown escape {letter!r}")
            return _ESCAPES[letter]
        code = self.text[self.at : self.at + digits]
        if len(code) < digits or not all(c in "0123456789abcdefABCDEF" for c in code):
            self._fail(f"escape {code!r} is not {digits} hexadecimal digits")
        self.at += digits
        return chr(int(code, 16))

    def _read_scalar(self) -> Any:
        if (found := _NAME.match(self.text, self.at)) is not None:
            if found[0] not in _WORDS:
                self._fail(f"unknown word {found[0][:40]!r}")
            self.at = found.end()
            return _WORDS[found[0]]
        return self._read_number()

    def _read_number(self) -> int | float:
        found = _NUMBER.match(self.text, self.at)
        if found is None:
            seen = self.text[self.at : self.at + 1]
            self._fail(f"unexpected {seen!r}" if seen else "the text ends too early")
        if len(found[0]) > _NUMBER_CHARS_MAX:
            self._fail(f"a number of {len(found[0])} digits")
        self.at = found.end()
        return int(found[0]) if found[1] is None and found[2] is None else float(found[0])

    def _peek(self) -> str:
        """Skip blanks and comments, and return the next character, or "" at the end."""
        found = _BLANK.match(self.text, self.at)
        assert found is not None  # it matches the empty string
        self.at = found.end()
        return self.text[self.at : self.at + 1]

    def _expect(self, mark: str) -> None:
        seen = self._peek()
        if seen != mark:
            self._fail(f"expected {mark!r}, found {seen!r}")
        self.at += 1

    def _descend(self, depth: int) -> None:
        if depth >= DEPTH_MAX:
            self._fail(f"nested deeper than {DEPTH_MAX}")
        self.at += 1

    def _fail(self, problem: str) -> NoReturn:
        raise MalformedBody(f"JSON character {self.at}", problem)


_HALF_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _join_surrogates(text: str) -> str:
    """Join the halves of escaped surrogate pairs; a single half becomes `?`, as in Java."""
    if _HALF_SURROGATE.search(text) is None:
        return text
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return _HALF_SURROGATE.sub("?", joined)


#: How many values all references together may repeat; no real body has nearly as many.
REPEATED_VALUES_MAX: Final = 100_000

_STEP: Final = re.compile(r"\.([\w$]+)|\[(\d+)\]|\.?\[['\"](.*?)['\"]\]")


class _ReferenceResolver:
    """Replaces `{"$ref": path}` by its target: `$` with steps `.name`, `[3]`, `['na.me']`.

    A reference may only name a value that is complete before it, as fastjson writes them; so a
    value cannot contain itself. The target is shared, not copied, but a walk over the result visits
    it again; `REPEATED_VALUES_MAX` bounds that.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._sizes: dict[int, int] = {}  # id of a completed object or array -> values in it
        self._repeated = 0

    def resolve(self) -> Any:
        return self._walk(self._root, 0)[0]

    def _walk(self, value: Any, depth: int) -> tuple[Any, int]:
        """Return the value with its references replaced, and how many values it contains."""
        if isinstance(value, dict):
            path = value.get("$ref")
            if isinstance(path, str) and len(value) == 1:
                return self._target(path)
            slots: Any = value.items()
        elif isinstance(value, list):
            slots = enumerate(value)
        else:
            return value, 1
        if depth >= DEPTH_MAX:
            raise MalformedBody("JSON", f"nested deeper than {DEPTH_MAX}")
        size = 1
        for slot, item in slots:
            value[slot], item_size = self._walk(item, depth + 1)
            size += item_size
        self._sizes[id(value)] = size
        return value, size

    def _target(self, path: str) -> tuple[Any, int]:
        where = f"JSON reference {path[:80]!r}"
        target = _follow(path, self._root, where)
        size = 1
        if isinstance(target, dict | list):
            size = self._sizes.get(id(target), 0)
            if not size:
                raise MalformedBody(where, "names a value that is not complete before it")
        self._repeated += size
        if self._repeated > REPEATED_VALUES_MAX:
            raise MalformedBody(where, f"repeats more than {REPEATED_VALUES_MAX} values")
        return target, size


def _follow(path: str, root: Any, where: str) -> Any:
    if not path.startswith("$"):
        raise MalformedBody(where, "does not begin with $")
    value, at = root, 1
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            raise MalformedBody(where, f"step {path[at : at + 40]!r} is not understood")
        at = step.end()
        try:
            value = value[int(step[2])] if step[2] is not None else value[step[1] or step[3]]
        except (LookupError, TypeError, ValueError) as error:
            raise MalformedBody(where, f"nothing is at {path[:at]!r}") from error
    return value
