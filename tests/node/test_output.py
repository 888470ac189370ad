"""A container's output is whole, whatever the engine does with the connections that tell of it."""

from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tessera.node.output import Output


@dataclass(frozen=True)
class Message:
    """A piece of a line as the engine keeps it."""

    second: int
    stream: int
    text: bytes

    def framed(self) -> bytes:
        text = b"2026-03-02T09:%02d:%02d.000000001Z " % divmod(self.second, 60) + self.text
        return bytes([self.stream, 0, 0, 0]) + len(text).to_bytes(4, "big") + text


def told(messages: list[Message], query: str) -> bytes:
    """What the engine sends to a reader who asks for messages since a time."""
    begin = int(query.removeprefix("&since=") or 0)
    return b"".join(m.framed() for m in messages if NINE + m.second >= begin)


NINE = 1772442000  # 2026-03-02 09:00 UTC
MESSAGES = st.lists(
    st.builds(
        Message,
        second=st.integers(0, 2),
        stream=st.sampled_from([1, 2]),
        text=st.sampled_from([b"", b"a\n", b"a\n", b"a b c\n", b"0" * 40]),
    ),
    max_size=12,
)


def in_order(messages: list[Message]) -> list[Message]:
    return sorted(messages, key=lambda message: message.second)


def pieces(stream: bytes, size: int) -> Iterator[bytes]:
    return (stream[begin : begin + size] for begin in range(0, len(stream), size))


@given(messages=MESSAGES, size=st.integers(1, 60))
def test_messages_are_taken_apart_wherever_they_are_cut(
    messages: list[Message], size: int
) -> None:
    output = Output()
    assert output.resume() == ""

    got = b"".join(output.feed(piece) for piece in pieces(told(messages, ""), size))

    assert got == b"".join(message.text for message in messages)


@given(
    messages=MESSAGES, breaks=st.lists(st.integers(0, 300), max_size=4), size=st.integers(1, 60)
)
def test_nothing_is_lost_or_said_twice_however_often_a_connection_breaks_off(
    messages: list[Message], breaks: list[int], size: int
) -> None:
    messages = in_order(messages)
    output, got = Output(), b""

    for end in [*breaks, None]:
        stream = told(messages, output.resume())[:end]
        got += b"".join(output.feed(piece) for piece in pieces(stream, size))
        assert not output.is_lost

    assert got == b"".join(message.text for message in messages)
    assert not output.seeks


@given(
    messages=MESSAGES,
    end=st.integers(0, 600),
    size=st.integers(1, 60),
    written=st.integers(0, 60),
    breaks=st.lists(st.integers(0, 300), max_size=2),
)
def test_another_process_resumes_behind_the_bytes_that_were_written(
    messages: list[Message], end: int, size: int, written: int, breaks: list[int]
) -> None:
    messages = in_order(messages)
    first, got, noted = Output(), b"", (b"", 0)
    parts = list(pieces(told(messages, first.resume())[:end], size))
    for number, part in enumerate(parts):
        new = first.feed(part)
        if number == len(parts) - 1:  # killed while it wrote, before the note
            got += new[:written]
            break
        got += new
        noted = first.position(), len(got)

    second = Output()
    if noted[0]:
        second.restore(noted[0])
    rest = b""
    for cut in [*breaks, None]:
        stream = told(messages, second.resume())[:cut]
        rest += b"".join(second.feed(part) for part in pieces(stream, size))

    assert got + rest[len(got) - noted[1] :] == b"".join(message.text for message in messages)


def test_pieces_of_a_long_line_that_share_its_time_are_distinguished() -> None:
    messages = [Message(0, 1, b"0" * 100)] * 19
    output = Output()
    output.resume()

    got = output.feed(told(messages[:17], ""))
    got += output.feed(told(messages, output.resume()))

    assert got == b"0" * 1900


def test_an_open_line_is_gone_on_with_although_another_stream_is_minutes_ahead() -> None:
    begun, loud = Message(0, 1, b"progress "), Message(600, 2, b"warning\n")
    output = Output()
    output.resume()

    got = output.feed(told([begun, loud], ""))
    got += output.feed(told([begun, loud, Message(0, 1, b"done\n")], output.resume()))

    assert got == b"progress warning\ndone\n"


def test_a_piece_of_a_line_after_minutes_of_another_stream_is_the_place_to_go_on_from() -> None:
    messages = [Message(0, 1, b"one "), Message(600, 2, b"warning\n"), Message(0, 1, b"two ")]
    output = Output()
    output.resume()

    got = output.feed(told(messages, ""))
    got += output.feed(told([*messages, Message(0, 1, b"three\n")], output.resume()))

    assert got == b"one warning\ntwo three\n"
    assert not output.is_lost


def test_only_the_last_seconds_are_asked_for_again() -> None:
    output = Output()
    output.resume()
    output.feed(told([Message(0, 1, b"first\n"), Message(900, 1, b"last\n")], ""))

    assert output.resume() == f"&since={NINE + 899}"


def test_what_goes_on_after_a_place_that_was_dropped_is_taken_and_the_loss_is_reported() -> None:
    output = Output()
    output.resume()
    output.feed(told([Message(0, 1, b"first\n")], ""))

    query = output.resume()

    assert output.seeks
    assert output.feed(told([Message(7, 1, b"later\n"), Message(7, 2, b"more\n")], query)) == (
        b"later\nmore\n"
    )
    assert output.is_lost


def test_times_of_other_zones_are_understood() -> None:
    text = b"2026-03-02T11:30:00.5+02:30 word\n"
    output = Output()
    output.resume()

    assert output.feed(b"\x01\0\0\0" + len(text).to_bytes(4, "big") + text) == b"word\n"
    assert output.resume() == f"&since={NINE - 1}"
