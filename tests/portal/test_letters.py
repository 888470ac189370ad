"""Mails speak the language that their reader has chosen for the portal."""

from portal.letters import letter
from scheduling.core.notices import mail_text, subject_of

BODY = {
    "event": "job.failed",
    "at": "2026-03-02T09:30:00Z",
    "tenant": "vision",
    "job": {"id": 3, "name": "running", "state": "failed", "owner": "alice"},
}


def test_a_mail_is_written_in_the_language_of_the_person_and_names_stay() -> None:
    subject, text = letter(BODY, "zh-hans")

    assert subject == "作业 3 running：作业最终失败"
    assert "名称：running\n状态：失败\n所有者：alice\n租户：vision\n" in text


def test_whoever_leaves_the_language_to_the_browser_is_written_to_in_english() -> None:
    assert letter(BODY, "browser") == (subject_of(BODY), mail_text(BODY))
    assert letter(BODY, "") == letter(BODY, "en") == letter(BODY, "browser")
