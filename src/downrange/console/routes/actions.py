"""Actions: `POST /actions/NAME`. Each is checked, done, and written to the audit file.

A form whose fields are wrong is written, too, without a command. A form without a valid token is
not: its sender is not known. `handler` logs it.

After an action the browser is sent to the page that shows the change, with the id of the audit
record. The page finds the outcome by this id, so no text of an address is ever shown as an outcome.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast
from urllib.parse import urlencode

from starlette.responses import RedirectResponse

from downrange.console.action_forms import ACTIONS, address_after
from downrange.console.audit import AuditRecord, new_record_id
from downrange.console.cluster.actions.action import command_line
from downrange.console.failures import Forbidden, PageNotFound
from downrange.errors import OptionError, RocketMQError

if TYPE_CHECKING:
    from starlette.responses import Response

    from downrange.console.cluster.actions.action import Action, ResettingAction
    from downrange.console.forms import Form
    from downrange.console.visits import Visit


async def act(visit: Visit) -> Response:
    """Do an action, or show what it would change."""
    name = visit.request.path_params["name"]
    if name not in ACTIONS:
        raise PageNotFound(f"there is no action of this name; there are {', '.join(ACTIONS)}")
    form = await visit.form()
    try:
        action = ACTIONS[name](form)
    except OptionError as error:
        target = form.raw("group") or form.raw("topic")
        return _refuse(visit, error, name, target)
    command = command_line(action, visit.console.view.name_servers, visit.console.options.namespace)
    if not visit.known_visitor.may_do(action):
        refusal = Forbidden(_missing_right(visit, action))
        return _refuse(visit, refusal, name, action.target, command)
    if form.is_on("preview"):
        if not hasattr(action, "preview"):
            problem = OptionError(f"preview: {name} has none")
            return _refuse(visit, problem, name, action.target, command)
        return await _preview(visit, action, form, command)
    try:
        result = replace(await visit.console.view.do(action), command=command)
    except RocketMQError as error:
        return _refuse(visit, error, name, action.target, command)
    outcome = result.text
    record = _record(visit, name, action.target, command, is_ok=result.is_ok, outcome=outcome)
    if visit.wants_json:
        return visit.json(result)
    return RedirectResponse(_with_record(address_after(action, result), record), 303)


def _refuse(
    visit: Visit, error: RocketMQError, action: str, target: str, command: str = ""
) -> Response:
    """Record an action that was not done, and show why; without a command if there is none."""
    _record(visit, action, target, command, is_ok=False, outcome=str(error))
    more = {"command": command} if command else {}
    return visit.problem(error, **more)


async def _preview(visit: Visit, action: Action, form: Form, command: str) -> Response:
    preview = await visit.console.view.preview(cast("ResettingAction", action))
    found = replace(preview, command=command)
    hidden = [(name, value) for name, value in form.items if name not in ("preview", "token")]
    return visit.page("preview.html", found, action=action, hidden=hidden)


def _record(
    visit: Visit, action: str, target: str, command: str, *, is_ok: bool, outcome: str
) -> AuditRecord:
    return visit.console.audit.add(
        AuditRecord(
            id=new_record_id(),
            at=datetime.now(UTC),
            visitor=visit.known_visitor.name,
            address=visit.address,
            action=action,
            target=target,
            command=command,
            is_ok=is_ok,
            outcome=outcome,
        )
    )


def _missing_right(visit: Visit, action: Action) -> str:
    visitor = visit.known_visitor
    if not visitor.may_act:
        return "this console is read-only; it was started without --allow-actions"
    if action.right == "publish":
        topic = visitor.named(action.target)
        return f"account {visitor.name!r} has no PUB permission for topic {topic!r}"
    return f"account {visitor.name!r} is not an administrator, as {action.name} needs"


def _with_record(address: str, record: AuditRecord) -> str:
    return f"{address}{'&' if '?' in address else '?'}{urlencode({'done': record.id})}"
