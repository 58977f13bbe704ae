"""`downrange decode`: shows captured bytes in readable form."""

from __future__ import annotations

import json
import mmap
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import click

from downrange.cli.exit_codes import FAILED, print_error
from downrange.cli.parameters import READABLE_FILE, argument, command
from downrange.errors import MalformedFrame, WireError
from downrange.wire import fastjson
from downrange.wire.codes import RequestCode, ResponseCode, named
from downrange.wire.command import Command
from downrange.wire.command import decode as decode_frame
from downrange.wire.fields import REQUEST_HEADERS
from downrange.wire.frames import FrameSplitter
from downrange.wire.properties import PropertyKey
from downrange.wire.records import MAGIC_V1, MAGIC_V2, Record, decode_records, scan_segment

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

#: How many characters or bytes of a body are shown.
_BODY_BYTES_SHOWN: Final = 200


@command()
@argument(
    "text",
    metavar="[HEX]",
    required=False,
    help="Frames in hexadecimal; standard input if not given.",
)
@click.option("--file", type=READABLE_FILE, help="Read raw bytes from this file instead.")
@click.option("--records", is_flag=True, help="Decode stored messages or a log segment.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def decode(text: str | None, file: Path | None, records: bool, as_json: bool) -> None:
    """Decode captured bytes: remoting frames, or stored messages.

    Exit code 1 means that the bytes are invalid; everything before the damage is shown.
    """
    if text is not None and file is not None:
        raise click.BadParameter("give either HEX or --file, not both")
    show = show_records if records else show_frames
    try:
        with _open_bytes(text, file) as data:
            show(data, as_json=as_json)
    except WireError as error:
        print_error(error)
        raise click.exceptions.Exit(FAILED) from error


@contextmanager
def _open_bytes(text: str | None, file: Path | None) -> Generator[bytes]:
    """Yield the input; a file is mapped, so that its first bytes are there at once."""
    if file is None:
        try:
            data = parse_hex(text or sys.stdin.read())
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
        yield data
        return
    with file.open("rb") as opened:
        try:
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # a pipe, or an empty file
            yield opened.read()
            return
        with mapped:
            yield cast("bytes", mapped)  # slices of it are bytes


def parse_hex(text: str) -> bytes:
    """Parse hexadecimal text, ignoring white space; raise `ValueError` if it is invalid."""
    digits = "".join(text.split())
    if not digits:
        raise ValueError("nothing to decode: the input is empty")
    try:
        return bytes.fromhex(digits)
    except ValueError as error:
        raise ValueError(f"not hexadecimal: {error}") from error


def show_frames(data: bytes, *, as_json: bool) -> None:
    """Print every frame; raise `WireError` at the first one that cannot be decoded."""
    from downrange.cli.output import print_json

    for each in _decode_frames(data):
        facts = _command_facts(each)
        if as_json:
            print_json(facts)
        else:
            _print_facts(facts)


def show_records(data: bytes, *, as_json: bool) -> None:
    """Print every stored message; raise `WireError` at the first one that is damaged."""
    from downrange.cli.output import print_json

    for record in scan_segment(data):
        if as_json:
            print_json(_record_facts(record))
        else:
            print(_record_line(record), flush=True)


def _decode_frames(data: bytes) -> Iterator[Command]:
    frames = FrameSplitter()
    frames.receive(data[:])  # a copy of a mapped file
    while (frame := frames.next_frame()) is not None:
        yield decode_frame(frame)
    if not frames.is_idle:
        raise MalformedFrame("end of the bytes", "the last frame is incomplete")


def _command_facts(command: Command) -> dict[str, Any]:
    kind = "reply" if command.is_reply else "one-way request" if command.is_oneway else "request"
    code = named(ResponseCode if command.is_reply else RequestCode, command.code)
    facts: dict[str, Any] = {
        "kind": kind,
        "code": f"{int(code)} {getattr(code, 'name', '(unknown)')}",
        "request_id": command.request_id,
        "sender": f"{command.language.name if command.language else '?'} {command.version}",
        "header_codec": command.codec.name,
        "remark": command.remark,
        "fields": _typed_fields(command),
        "body": _body_facts(command.body),
    }
    return {name: fact for name, fact in facts.items() if fact not in (None, {}, "")}


def _typed_fields(command: Command) -> dict[str, Any]:
    """Return the fields with their full names, if the header class is known and accepts them."""
    header = None if command.is_reply else REQUEST_HEADERS.get(command.code)
    if header is None:
        return dict(command.fields)
    try:
        typed = header.from_fields(command.fields)
    except WireError:
        return dict(command.fields)
    members = {name: getattr(typed, name) for name in typed.__struct_fields__}
    return {name: value for name, value in members.items() if value is not None}


def _body_facts(body: bytes) -> Any:
    """Return the body as records, JSON, text or hexadecimal, whatever fits first."""
    if int.from_bytes(body[4:8], "big", signed=True) in (MAGIC_V1, MAGIC_V2):
        return [_record_facts(record) for record in decode_records(body)]
    if body[:1] in (b"{", b"["):
        try:
            return fastjson.loads(body)
        except WireError:
            pass
    return _readable(body)


def _record_facts(record: Record) -> dict[str, Any]:
    """Return the fields of a record for JSON; those that `tail --json` has too are named alike."""
    from downrange.client.exports import utc_text

    return {
        "topic": record.topic,
        "queue": record.queue_id,
        "offset": record.queue_offset,
        "log_offset": record.log_offset,
        "offset_id": record.offset_id,
        "sys_flag": record.sys_flag,
        "born_at": utc_text(record.born_ms),
        "born_host": record.born_host,
        "stored_at": utc_text(record.store_ms),
        "store_host": record.store_host,
        "properties": record.properties(),
        "body": _readable(record.body),
    }


def _record_line(record: Record) -> str:
    from downrange.cli.output import LINE_BYTES, body_text, local_text, readable

    properties = record.properties()
    words = [
        local_text(record.store_ms),
        f"log={record.log_offset}",
        f"{record.topic}/{record.queue_id}@{record.queue_offset}",
    ]
    if tags := properties.get(PropertyKey.TAGS):
        words.append(f"[{tags}]")
    words += [f"key={key}" for key in properties.get(PropertyKey.KEYS, "").split()]
    return f"{readable(' '.join(words))} {body_text(record.body, LINE_BYTES)}"


def _readable(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body[:_BODY_BYTES_SHOWN].hex(" ", 4)
    return text if len(text) <= _BODY_BYTES_SHOWN else f"{text[:_BODY_BYTES_SHOWN]}…"


def _print_facts(facts: dict[str, Any]) -> None:
    from downrange.cli.output import print_facts

    texts = {
        name: fact if isinstance(fact, str | int) else json.dumps(fact, indent=1, default=str)
        for name, fact in facts.items()
        if name not in ("kind", "code")
    }
    print_facts(texts, title=f"{facts['kind']} {facts['code']}")
