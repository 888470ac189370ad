"""The scripts of live pages in a real browser, against a server that loses messages on purpose."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, Route, WebSocketRoute, expect

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

SCRIPTS = Path(__file__).resolve().parents[2] / "static" / "js"
HOST = "http://portal.test"
SLOW_MS = 30_000
START = """
import { startBind } from "/js/bind.js";
import { startLive } from "/js/live.js";
import { startLog } from "/js/logs.js";
import { startTicker } from "/js/ticker.js";
globalThis.parts = 0;
for (const part of document.querySelectorAll("[data-topic=overview]"))
  part.addEventListener("tessera:update", () => { globalThis.parts += 1; });
startBind();
for (const card of document.querySelectorAll("[data-log]")) startLog(card);
startLive();
startTicker();
"""
FRAME = """<!doctype html><html lang="en"><body data-round-seconds="10">
<span data-live></span>%s<script type="module" src="/start.js"></script></body></html>"""
NUMBERS = '<div data-topic="overview"><b data-bind="in_use"><span>?</span></b></div>'
LOG = """<section data-log data-job="7" data-role="worker" data-rank="0" data-url="/logs/">
<input data-log-find><button data-log-next hidden><span data-log-errors></span></button>
<button data-log-previous hidden></button><button data-log-wrap></button>
<button data-log-follow><b></b></button><div class="log" tabindex="0"><ol></ol></div>
<span data-log-summary></span><button data-log-earlier hidden></button></section>"""

TICKER = """<div data-banner></div>
<span data-ticker data-topic="rounds" data-twin="/twin/"><svg></svg>
<b data-ticker-number></b><i data-ticker-seconds></i><i data-ticker-policy></i>
<i data-ticker-age></i></span>"""


class Server:
    """Answers as the portal would, and keeps what the page has said.

    Attributes:
        heard: messages of the page.
        log: all that the job has written.
        held: questions for the log that are not answered yet; None: each is answered at once.
        is_deaf: it takes no socket.
        asked: for a twin, and not answered yet.
    """

    def __init__(self, page: Page, body: str) -> None:
        self.heard: list[dict[str, object]] = []
        self.sockets: list[WebSocketRoute] = []
        self.log = ""
        self.held: list[Route] | None = None
        self.is_deaf = False
        self.asked: list[Route] = []
        self._page, self._body = page, body
        page.route(f"{HOST}/**", self._answer)
        page.route_web_socket(re.compile("/ws/live/"), self._connect)
        page.goto(f"{HOST}/")
        self.wait_for(lambda: self.heard)

    def say(self, topic: str, version: int, data: object, **more: object) -> None:
        """A message on the newest socket."""
        message = {"topic": topic, "version": version, "data": data, **more}
        self.sockets[-1].send(json.dumps(message))

    def wait_for(self, condition: object) -> None:
        """Let the browser go on until something holds."""
        for _ in range(SLOW_MS // 20):
            if condition():  # type: ignore[operator]
                return
            self._page.wait_for_timeout(20)
        raise AssertionError(self.heard)

    def _connect(self, socket: WebSocketRoute) -> None:
        if self.is_deaf:
            socket.close()
            return
        self.sockets.append(socket)
        socket.on_message(lambda text: self.heard.append(json.loads(text)))

    def _answer(self, route: Route) -> None:
        parts = urlsplit(route.request.url)
        if parts.path.startswith("/js/"):
            route.fulfill(path=SCRIPTS / parts.path.rpartition("/")[2])
        elif parts.path == "/start.js":
            route.fulfill(body=START, content_type="text/javascript")
        elif parts.path == "/twin/":
            self.asked.append(route)
        elif parts.path == "/logs/" and self.held is not None:
            self.held.append(route)
        elif parts.path == "/logs/":
            self.tell_log(route)
        else:
            route.fulfill(body=FRAME % self._body, content_type="text/html")

    def tell_log(self, route: Route) -> None:
        """Answer a question for the log by what it holds now."""
        route.fulfill(json=self._part(parse_qs(urlsplit(route.request.url).query)))

    def _part(self, query: dict[str, list[str]]) -> dict[str, object]:
        offset, limit = int(query["offset"][0]), int(query["limit"][0])
        text = self.log[offset : offset + limit]
        end = offset + len(text)
        return {"text": text, "offset": offset, "next_offset": end, "size": len(self.log)}


@pytest.fixture
def page(page: Page) -> Iterator[Page]:
    faults: list[str] = []
    page.set_default_timeout(SLOW_MS)
    page.on("pageerror", lambda error: faults.append(str(error)))
    yield page
    assert faults == []


def test_numbers_follow_at_once_also_after_a_message_that_was_lost(page: Page) -> None:
    server = Server(page, NUMBERS)
    assert server.heard[0] == {"subscribe": ["overview"], "confirm": True}
    number = page.locator("[data-bind] span")
    server.say("overview", 1, {"in_use": 5}, pace=1)
    expect(number).to_have_text("5")
    page.wait_for_function("globalThis.parts === 1")

    server.say("overview", 4, {"in_use": 8, "changed": "exit"}, pace=1)

    expect(number).to_have_text("8")
    page.wait_for_function("globalThis.parts === 2")


def test_after_a_reconnect_the_message_that_is_here_already_fetches_nothing(page: Page) -> None:
    server = Server(page, NUMBERS)
    number = page.locator("[data-bind] span")
    server.say("overview", 3, {"in_use": 5}, pace=0)
    page.wait_for_function("globalThis.parts === 1")

    server.sockets[-1].close(code=1012)

    server.wait_for(lambda: len(server.sockets) == 2 and len(server.heard) == 2)
    server.say("overview", 3, {"in_use": 5}, pace=0)
    server.say("confirmed", 4, {"topics": ["overview"]})
    server.say("overview", 9, {"in_use": 7}, pace=0)
    expect(number).to_have_text("7")
    page.wait_for_function("globalThis.parts === 2")


def test_parts_wait_as_long_as_the_server_asks_for(page: Page) -> None:
    server = Server(page, NUMBERS)
    for version in range(1, 30):
        server.say("overview", version, {"in_use": version}, pace=600)

    expect(page.locator("[data-bind] span")).to_have_text("29")
    assert page.evaluate("globalThis.parts") == 0


def test_a_log_has_no_gap_after_a_lost_message_and_a_reconnect(page: Page) -> None:
    server = Server(page, LOG)
    lines = page.locator(".log .tx")

    def write(count: int) -> tuple[int, str]:
        before = len(server.log)
        first = server.log.count("\n")
        server.log += "".join(f"line {first + n}\n" for n in range(count))
        return before, server.log[before:]

    def tell(offset: int, text: str) -> None:
        data = {"offset": offset, "text": text, "next_offset": offset + len(text), "end": False}
        server.say("log:7:worker:0", len(server.log), data)

    tell(*write(3))
    expect(lines).to_have_count(3)
    write(4)  # nobody is told
    tell(*write(2))
    expect(lines).to_have_count(9)
    server.sockets[-1].close(code=1012)
    write(5)  # while nobody listens
    server.wait_for(lambda: len(server.sockets) == 2 and len(server.heard) == 2)
    confirmed = {"topics": ["log:7:worker:0"]}
    server.say("confirmed", 1, confirmed)

    expect(lines).to_have_count(14)
    assert lines.all_inner_texts() == [f"line {number}" for number in range(14)]
    expect(page.locator("[data-log-summary]")).to_contain_text("no gaps")
    page.fill("[data-log-find]", "line 13")
    expect(page.locator("li.found")).to_have_count(1)


def test_what_arrives_while_the_log_is_read_stands_there_once(page: Page) -> None:
    server = Server(page, f'{LOG}<i data-topic="overview"></i>')
    lines = page.locator(".log .tx")
    topic = "log:7:worker:0"
    server.log = "line 0\n"
    server.say(topic, 1, {"offset": 0, "text": "line 0\n", "next_offset": 7})
    expect(lines).to_have_count(1)

    held: list[Route] = []
    server.held = held
    server.say(topic, 2, {"offset": 7, "text": "", "next_offset": 21})
    server.wait_for(lambda: held)
    server.log += "line 1\nline 2\n"
    server.say(topic, 3, {"offset": 7, "text": "line 1\n", "next_offset": 14})
    server.say("overview", 1, {})
    page.wait_for_function("globalThis.parts === 1")
    server.held = None
    server.tell_log(held[0])

    expect(page.locator("[data-log-summary]")).to_contain_text("21 of 21 bytes, no gaps")
    assert lines.all_inner_texts() == [f"line {number}" for number in range(3)]


def test_what_stands_earlier_joins_on_without_a_gap_and_once(page: Page) -> None:
    server = Server(page, LOG)
    lines = page.locator(".log .tx")
    whole = [f"line {number}:{'x' * (number % 190)}" for number in range(4_000)]
    server.log = "\n".join(whole) + "\n"
    page.reload()
    earlier = page.locator("[data-log-earlier]")
    expect(earlier).to_be_visible()
    assert 0 < lines.count() < len(whole)

    for _ in range(5):
        if earlier.is_hidden():
            break
        shown = lines.count()
        earlier.evaluate("(button) => { button.click(); button.click(); }")
        page.wait_for_function(f"document.querySelectorAll('.log .tx').length > {shown}")

    assert lines.all_inner_texts() == whole
    expect(page.locator("[data-log-summary]")).to_contain_text("no gaps")


def test_a_line_longer_than_what_is_loaded_is_shown_as_far_as_it_goes(page: Page) -> None:
    server = Server(page, LOG)
    lines = page.locator(".log .tx")
    bar = "".join(f"\r{number:5} of 40000" for number in range(40_000))
    server.log = f"begin\n{bar}"
    page.reload()
    server.wait_for(lambda: len(server.heard) == 2)
    expect(lines).to_have_text(["39999 of 40000"])

    def tell(text: str) -> None:
        before = len(server.log)
        server.log += text
        data = {"offset": before, "text": text, "next_offset": len(server.log)}
        server.say("log:7:worker:0", len(server.log), data)

    tell("\r40000 of 40000")
    expect(lines).to_have_text(["40000 of 40000"])
    tell("\nend\n")
    expect(lines).to_have_text(["40000 of 40000", "end"])

    def shows_all() -> bool:
        # A click while a part is loaded has no effect.
        page.locator("[data-log-earlier]").evaluate("(button) => button.click()")
        return lines.count() == 3

    server.wait_for(shows_all)
    expect(lines).to_have_text(["begin", "40000 of 40000", "end"])


def test_a_log_has_the_colours_of_a_terminal_and_no_other_escapes(page: Page) -> None:
    server = Server(page, LOG)
    server.log = (
        "plain \x1b[1;31mred\x1b[0m \x1b[38;5;31mrest\x1b[39m\n"
        "10 %\r20 %\x1b[32m ok\x1b[m\r\x1b[K\n\x1b[?25l<b>\x1b[2J\n"
    )
    page.reload()

    lines = page.locator(".log .tx")
    expect(lines).to_have_text(["plain red rest", "20 % ok", "<b>"])
    expect(page.locator(".log .sgr1.bold")).to_have_text("red")
    expect(page.locator(".log .sgr2")).to_have_text("ok")
    assert page.locator(".log .tx span").count() == 2


def test_what_stands_earlier_joins_on_to_a_line_that_still_goes_on(page: Page) -> None:
    server = Server(page, LOG)
    lines = page.locator(".log .tx")
    server.log = "begin\n" + "\r 99 %" * 60_000
    page.reload()
    server.wait_for(lambda: len(server.heard) == 2)
    expect(lines).to_have_count(1)

    page.locator("[data-log-earlier]").click()
    expect(lines).to_have_text(["begin", "99 %"])
    before, text = len(server.log), "\r100 %\nend\n"
    server.log += text
    data = {"offset": before, "text": text, "next_offset": len(server.log)}
    server.say("log:7:worker:0", 2, data)

    expect(lines).to_have_text(["begin", "100 %", "end"])


def test_the_log_of_another_worker_keeps_its_first_line(page: Page) -> None:
    ranks = "".join(f"<option>worker:{rank}</option>" for rank in range(2))
    select = f"<select data-log-stream>{ranks}</select>"
    server = Server(page, LOG.replace("<input", f"{select}<input"))
    lines = page.locator(".log .tx")
    server.log = "." * 400_000
    page.reload()
    expect(lines).to_have_count(1)

    server.log = "first\nsecond\n"
    page.select_option("[data-log-stream]", "worker:1")

    expect(lines).to_have_text(["first", "second"])


def test_messages_while_the_log_is_read_ask_once_more_together(page: Page) -> None:
    server = Server(page, f'{LOG}<i data-topic="overview"></i>')
    topic = "log:7:worker:0"
    held: list[Route] = []
    server.held = held
    server.say(topic, 1, {"offset": 7, "text": "", "next_offset": 21})
    server.wait_for(lambda: held)
    server.log = "line 0\n" * 30

    for version in range(2, 22):
        told = {"offset": 7 * version, "text": "line 0\n", "next_offset": 7 * version + 7}
        server.say(topic, version, told)
    server.say("overview", 1, {})
    page.wait_for_function("globalThis.parts === 1")
    answered = 0
    for _ in range(100):
        while answered < len(held):
            server.tell_log(held[answered])
            answered += 1
        page.evaluate("0")  # the page goes on meanwhile

    expect(page.locator(".log .tx")).to_have_count(30)
    # What there is, that there is no more of it, and the same for all the messages.
    assert len(held) == 3


def test_news_count_whatever_the_clock_of_their_sender_says(page: Page) -> None:
    server = Server(page, '<div data-topic="job:7"></div>')
    page.evaluate("""() => { globalThis.states = []; document.addEventListener("tessera:job:7",
      (event) => globalThis.states.push(event.detail.data.state)); }""")
    minute = 60_000_000
    now = 1_700_000_000_000_000

    for version, state in ((now, "queued"), (now - minute, "starting"), (now - minute, "running")):
        server.say("job:7", version, {"state": state})

    page.wait_for_function("globalThis.states.length === 3")
    assert page.evaluate("globalThis.states") == ["queued", "starting", "running"]


def test_a_confirmation_that_nobody_asked_for_lets_parts_look_again(page: Page) -> None:
    server = Server(page, '<div data-topic="job:7" data-twin="/twin/"></div>')
    topics = {"topics": ["job:7"]}
    server.say("confirmed", 1, topics)
    server.wait_for(lambda: len(server.asked) == 1)

    server.say("confirmed", 2, topics)

    server.wait_for(lambda: len(server.asked) == 2)


def test_without_a_socket_it_asks_no_faster_than_it_is_answered(page: Page) -> None:
    page.clock.install()
    server = Server(page, '<div data-topic="nodes" data-twin="/twin/"></div>')
    server.is_deaf = True
    server.sockets[-1].close()

    def minutes_pass_until_it_asks() -> None:
        for _ in range(60):
            page.clock.run_for(2_000)
            page.wait_for_timeout(10)
            if server.asked:
                return

    minutes_pass_until_it_asks()
    page.clock.run_for(120_000)
    assert len(server.asked) == 1

    server.asked.pop().fulfill(json={})
    minutes_pass_until_it_asks()
    page.clock.run_for(120_000)
    assert len(server.asked) == 1


def test_a_banner_says_that_rounds_have_stopped_once_the_portal_says_so_too(page: Page) -> None:
    server = Server(page, TICKER)
    began = datetime.now(UTC)
    rounds = [{"number": 7, "duration_ms": 20.0, "committed_at": began.isoformat()}]
    page.clock.install(time=began)
    page.reload()
    server.wait_for(lambda: len(server.sockets) == 2)
    server.say("rounds", 7, rounds[0])
    expect(page.locator("[data-ticker-number]")).to_have_text("7")

    page.clock.fast_forward(45_000)
    page.clock.run_for(10_000)

    server.wait_for(lambda: server.asked)
    # Nothing is said before: only the news of rounds may have stopped.
    expect(page.locator("[data-no-round]")).to_have_count(0)
    server.asked[0].fulfill(json={"results": rounds})
    expect(page.locator("[data-live]")).to_have_attribute("data-state", "stale")
    page.clock.run_for(2_000)
    expect(page.locator("[data-no-round] b")).to_contain_text("No scheduling round for 5")
    server.say("rounds", 8, {**rounds[0], "number": 8, "committed_at": _later(began, 58)})
    expect(page.locator("[data-no-round]")).to_have_count(0)


def test_a_page_that_never_hears_of_a_round_asks_for_the_last_one(page: Page) -> None:
    server = Server(page, TICKER)
    began = datetime.now(UTC)
    page.clock.install(time=began)
    page.reload()
    server.wait_for(lambda: len(server.sockets) == 2)

    page.clock.run_for(20_000)
    assert server.asked == []
    page.clock.run_for(20_000)

    server.wait_for(lambda: server.asked)
    rounds = [{"number": 7, "duration_ms": 20.0, "committed_at": began.isoformat()}]
    server.asked[0].fulfill(json={"results": rounds})
    expect(page.locator("[data-ticker-number]")).to_have_text("7")
    page.clock.run_for(2_000)
    expect(page.locator("[data-no-round] b")).to_contain_text("No scheduling round for 4")


def _later(moment: datetime, seconds: float) -> str:
    return (moment + timedelta(seconds=seconds)).isoformat()
