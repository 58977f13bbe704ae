"""Input that is not strictly valid and that servers accept; our decoder accepts it too."""

from __future__ import annotations

from downrange.wire.codes import HeaderCodec, RequestCode, ResponseCode
from downrange.wire.command import decode
from downrange.wire.frames import Frame, join_frame
from downrange.wire.limits import FRAME_BYTES_MAX
from tests.conversations.scene import Scene, succeed

FORMS = (
    '{"code":106,"extFields":{},"flag":0,"language":"PYTHON","opaque":5,"version":479}',
    '{"version":479,"opaque":5,"unknown":[1,{"a":2}],"code":106}',
    '{"code":"106","opaque":"5","flag":"0","version":"479","language":"python"}',
    '{"code":106,"opaque":5,"language":3,"version":479}',
    '{"code":106,"opaque":5,"language":"KLINGON","version":479}',
    "{'code':106,'opaque':5,/* a comment */'version':479,}",
    '{"code":106,"opaque":1,"opaque":5,"version":479}',
    '{"code":106,"opaque":5,"extFields":{"n":5,"b":true,"z":null},"version":479}',
)


def every_tolerated_form_of_a_json_header_is_read_alike(scene: Scene) -> None:
    for form in FORMS:
        ours = decode(Frame(HeaderCodec.JSON, form.encode(), b""))
        assert (ours.code, ours.request_id) == (RequestCode.GET_BROKER_CLUSTER_INFO, 5), form
        frame = join_frame(HeaderCodec.JSON, form.encode(), b"", FRAME_BYTES_MAX)
        reply = succeed(scene.name_server().exchange_raw(frame))
        assert reply.request_id == 5, form


def an_unknown_request_code_is_named_in_the_answer(scene: Scene) -> None:
    frame = join_frame(HeaderCodec.JSON, b'{"code":7654,"opaque":5}', b"", FRAME_BYTES_MAX)
    reply = scene.broker().exchange_raw(frame)
    assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert reply.remark is not None
    assert "7654" in reply.remark
