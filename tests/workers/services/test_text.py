"""Bytes cut between characters."""

from hypothesis import given
from hypothesis import strategies as st

from workers.services import logs


@given(words=st.text(max_size=20), cut=st.integers(0, 80))
def test_a_cut_never_falls_inside_a_character(words: str, cut: int) -> None:
    data = words.encode("utf-8", "surrogatepass")
    head, tail = data[:cut], data[cut:]

    rest = logs.unfinished(head)

    whole = head[: len(head) - rest]
    assert (
        whole.decode("utf-8", "surrogatepass")
        + (head[len(head) - rest :] + tail).decode("utf-8", "surrogatepass")
        == words
    )


@given(
    words=st.text(st.characters(exclude_categories=["Cs"]), max_size=20), cut=st.integers(0, 80)
)
def test_a_reader_that_begins_inside_a_character_begins_with_the_next(
    words: str, cut: int
) -> None:
    data = words.encode()
    cut = min(cut, len(data))

    skipped = logs.continued(data[max(0, cut - 3) : cut], data[cut:])

    assert words.endswith(data[cut + skipped :].decode())


@given(data=st.binary(max_size=30))
def test_any_bytes_have_a_text(data: bytes) -> None:
    rest = logs.unfinished(data)

    assert 0 <= rest < logs.LONGEST_CHARACTER
    assert "\0" not in logs.decode(data)


def test_bytes_that_are_no_text_are_not_kept_waiting() -> None:
    assert logs.unfinished(b"\x80\x80\x80\x80") == 0
    assert logs.unfinished(b"abc\xe4\xb8") == 2
    assert logs.unfinished("ä".encode()) == 0
    assert logs.decode(b"a\xff\0b") == "a\ufffd\ufffdb"
