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
    subject, text = letter(BODY, "zh-hans", "UTC")

    assert subject == "作业 3 running：作业最终失败"
    assert "名称：running\n状态：失败\n所有者：alice\n租户：vision\n" in text


def test_whoever_leaves_the_language_to_the_browser_is_written_to_in_english() -> None:
    in_utc = {**BODY, "at": "2026-03-02 09:30:00 UTC"}
    found = letter(BODY, "browser", "browser")
    assert found == (subject_of(in_utc), mail_text(in_utc))
    assert letter(BODY, "", "") == letter(BODY, "en", "UTC") == found
