"""Every action in a browser, from the form to the cluster: what is shown is what has happened."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.by import By

import downrange as mq
from tests.browser.shop import PATIENT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.browser.shop import Shop
    from tests.browser.window import Window


@pytest.fixture(scope="module")
def admin(shop: Shop) -> Iterator[mq.Admin]:
    with mq.Admin(shop.name_server, client_options=PATIENT) as admin:
        yield admin


def outcome(window: Window) -> str:
    """Return the text of the notice after an action; it has the equal command."""
    notice = window.one("#outcome")
    assert "good" in str(notice.get_attribute("class")), notice.text
    assert notice.find_element(By.TAG_NAME, "code").text.startswith("downrange ")
    return notice.text


def test_topic_is_created_altered_and_deleted(window: Window, admin: mq.Admin) -> None:
    window.open("/topics")
    form = window.unfold("create")
    window.fill(form, topic="refunds", queues="3")
    window.send(form)
    assert "downrange topic create" in outcome(window)
    assert window.heading == "refunds"
    assert {each.queue.number for each in admin.topic_stats("refunds")} == {0, 1, 2}
    form = window.unfold("alter")
    window.fill(form, read_queues="5", write_queues="5")
    window.send(form)
    assert "downrange topic" in outcome(window)
    wait_until(lambda: len(admin.topic_stats("refunds")) == 10)
    form = window.unfold("delete")
    button = form.find_element(By.TAG_NAME, "button")
    window.fill(form, typed="refund")
    assert not button.is_enabled(), "the name is not complete"
    window.fill(form, typed="refunds")
    window.send(form)
    assert "downrange topic delete" in outcome(window)
    assert "refunds" not in [topic.name for topic in admin.list_topics()]


def test_wrong_topic_is_refused_with_the_reason(window: Window, admin: mq.Admin) -> None:
    window.allow("/actions/create-topic - Failed to load resource")
    window.open("/topics")
    form = window.unfold("create")
    window.fill(form, topic="no spaces allowed")
    window.send(form)
    assert window.heading == "This is not possible"
    assert "no spaces allowed" in window.text_of("#problem")
    window.click("[data-back]")
    wait_until(lambda: window.path == "/topics")


def test_message_is_sent_found_sent_again_and_delivered(window: Window, admin: mq.Admin) -> None:
    window.open("/topics/orders")
    form = window.unfold("send")
    window.fill(form, body='{"order": "o-web"}', tags="web", keys="o-web", properties="by=console")
    window.send(form)
    assert "downrange send" in outcome(window)
    assert "o-web" in window.text
    assert "by" in window.text
    (message,) = wait_until(lambda: admin.query_messages("orders", "o-web"))
    assert message.properties["by"] == "console"

    window.send(window.one("form[action='/actions/send-again']"))
    outcome(window)
    wait_until(lambda: len(admin.query_messages("orders", "o-web")) == 2)

    forms = window.all("form[action='/actions/deliver-to-group']")
    members = forms[0].find_elements(By.TAG_NAME, "option")
    assert len(members) == 3, "any member, or one of the two"
    members[1].click()
    window.send(forms[0])
    assert "downrange" in outcome(window)
    assert "billing" in window.text_of("#outcome")


def test_group_is_created_paused_and_deleted(window: Window, admin: mq.Admin) -> None:
    window.open("/groups")
    form = window.unfold("create")
    window.fill(form, group="archive", retries="2")
    window.send(form)
    outcome(window)
    assert admin.group_settings("archive")["broker-a"].retries == 2
    form = window.unfold("alter")
    window.fill(form, is_enabled="no")
    window.send(form)
    outcome(window)
    assert "paused" in window.text
    form = window.unfold("delete")
    window.fill(form, typed="archive")
    window.send(form)
    outcome(window)
    assert "archive" not in [each.group for each in admin.list_groups()]


def test_offsets_are_reset_skipped_and_cloned_after_a_preview(
    window: Window, admin: mq.Admin
) -> None:
    def lag(group: str) -> int:
        return sum(
            each.messages for each in admin.group_lag(group).queues if each.queue.topic == "clicks"
        )

    behind = lag("reporting")
    assert behind > 100
    window.open("/groups/reporting")
    form = window.unfold("skip")
    window.send(form)
    assert window.heading == "Preview"
    assert f"{behind:,} are skipped" in window.text
    assert lag("reporting") == behind, "nothing is changed yet"
    window.send(window.one("form[action='/actions/skip-messages']"))
    outcome(window)
    assert lag("reporting") == 0

    form = window.unfold("reset")
    window.fill(form, topic="clicks", to="earliest")
    window.send(form)
    assert "messages are consumed again" in window.text
    assert "downrange group reset" in window.text_of(".command")
    window.mark()
    window.driver.find_element(By.LINK_TEXT, "Cancel").click()
    window.wait_loaded()
    assert lag("reporting") == 0
    form = window.unfold("reset")
    window.fill(form, topic="clicks", to="earliest")
    window.send(form)
    window.send(window.one("form[action='/actions/reset-offsets']"))
    outcome(window)
    assert lag("reporting") >= behind

    admin.create_group("copy")
    form = window.unfold("clone")
    window.fill(form, group="copy")
    window.send(form)
    window.send(window.one("form[action='/actions/clone-offsets']"))
    outcome(window)
    assert window.heading == "copy"
    assert lag("copy") == lag("reporting")


def test_selected_dead_letters_are_exported_and_sent_again(window: Window, admin: mq.Admin) -> None:
    window.open("/dead-letters/booking")
    boxes = window.all("input[name=id]")
    assert len(boxes) == 20
    for box in boxes[:2]:
        box.click()
    for id, read in (("export-csv", _read_csv), ("export-jsonl", _read_lines)):
        link = window.one(f"#{id}")
        window.run(
            "arguments[0].addEventListener('click', (e) => e.preventDefault(), {once: true})", link
        )
        link.click()  # the page adds what is selected
        text = window.driver.execute_async_script(
            "fetch(arguments[0]).then((a) => a.text()).then(arguments[1])",
            link.get_attribute("href"),
        )
        assert read(text) == 2
    before = sum(each.end - each.first for each in admin.queue_ranges("payments"))
    form = window.one("#letters")
    window.mark()
    form.find_element(By.ID, "resend").click()
    window.wait_loaded()
    assert "2" in outcome(window)
    after = sum(each.end - each.first for each in admin.queue_ranges("payments"))
    assert after == before + 2


def test_all_of_a_page_are_selected_with_one_click(window: Window) -> None:
    window.open("/dead-letters/booking")
    window.click("[data-all]")
    boxes = window.all("input[name=id]")
    assert boxes
    assert all(box.is_selected() for box in boxes)


def test_audit_has_every_action_with_its_command(window: Window) -> None:
    window.open("/topics/orders")
    form = window.unfold("send")
    window.fill(form, body="<i>audit</i>", keys="audited")
    window.send(form)
    window.open("/audit")
    first = window.text_of("tbody tr")
    assert "send-message" in first
    assert "local" in first
    assert "127.0.0.1" in first
    assert "downrange send" in first


def _read_csv(text: str) -> int:
    return len(list(csv.DictReader(io.StringIO(text))))


def _read_lines(text: str) -> int:
    return len([json.loads(line) for line in text.splitlines()])
