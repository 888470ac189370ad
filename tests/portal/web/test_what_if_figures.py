"""Charts of a what-if: only jobs with a known end, and the sides of the diagonal."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from portal.web.what_if_figures import LEAST_MINUTES, by_job, distribution, distribution_words

TIMES = st.one_of(st.none(), st.floats(0, 1e6))


def row(job: int, fact: float | None, was: float | None, changed: float | None) -> dict[str, Any]:
    verdict = "unknown"
    if was is not None and changed is not None:
        verdict = "winner" if changed < was else "loser" if changed > was else "same"
    return {
        "job": job,
        "in_fact_s": fact,
        "was_s": was,
        "would_be_s": changed,
        "verdict": verdict,
        "has_ended": fact is not None,
    }


ROWS = [row(1, 600, 600, 60), row(2, 1200, 1200, 1800), row(3, None, 20, 20)]


def test_the_lines_contain_the_jobs_whose_end_is_known() -> None:
    figure = distribution(ROWS)

    assert figure is not None
    actual, current, changed = figure["data"]
    assert (actual["x"], actual["y"]) == ([10.0, 20.0], [50.0, 100.0])
    assert current["x"] == [10.0, 20.0]
    assert changed["x"] == [1.0, 30.0]
    assert distribution_words(ROWS).startswith("2 jobs with a known end")


def test_winners_are_below_the_diagonal_and_losers_above() -> None:
    figure = by_job(ROWS, {1: "first"})

    assert figure is not None
    diagonal, winners, losers = figure["data"]
    assert diagonal["x"] == diagonal["y"] == [1.0, 30.0]
    assert (winners["x"], winners["y"], winners["text"]) == ([10.0], [1.0], ["first"])
    assert (losers["x"], losers["y"], losers["text"]) == ([20.0], [30.0], ["2"])


def test_without_a_known_end_there_is_no_chart() -> None:
    assert distribution([row(3, None, 20, 20)]) is None
    assert by_job([], {}) is None


@given(st.lists(st.tuples(TIMES, TIMES, TIMES), max_size=30))
def test_shares_rise_to_all_jobs_and_times_suit_a_logarithmic_axis(
    times: list[tuple[float | None, float | None, float | None]],
) -> None:
    figure = distribution([row(place, *one) for place, one in enumerate(times)])

    for line in figure["data"] if figure else ():
        assert line["x"] == sorted(line["x"])
        assert min(line["x"]) >= round(LEAST_MINUTES, 3)
        assert line["y"][-1] == 100.0
        assert line["y"] == sorted(line["y"])
