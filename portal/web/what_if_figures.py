"""Verdict of a what-if, distribution of completion times, and each job in both simulations."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.utils.translation import gettext

from portal.i18n import gettext_lazy
from portal.web.components import words
from portal.web.components.stats import PageVerdict

_LINES: Final = (
    ("in_fact_s", gettext_lazy("Actual"), "text-3", "dot"),
    ("was_s", gettext_lazy("Simulated, current"), "c1", "solid"),
    ("would_be_s", gettext_lazy("Simulated, changed"), "c2", "solid"),
)
_POINTS: Final = (
    ("winner", gettext_lazy("Winners"), "ok"),
    ("loser", gettext_lazy("Losers"), "bad"),
    ("same", gettext_lazy("Unchanged"), "text-3"),
)
NO_CHANGE: Final = 0.005
HARM: Final = 0.1
"""Growth of the p99 time above which the answer names it, as in the policy advisor."""

LEAST_MINUTES: Final = 1 / 60
"""Shortest time on the logarithmic axes."""


def distribution(jobs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the share of jobs that complete within a time, in fact and in both simulations.

    Only jobs whose end is known in all three are included, so that the lines are comparable.

    Args:
        jobs: rows of the result, with times in seconds.
    """
    known = [row for row in jobs if _is_known(row)]
    if not known:
        return None
    data = []
    for key, name, colour, dash in _LINES:
        times = sorted(_minutes(row[key]) for row in known)
        shares = [round(100 * (place + 1) / len(times), 2) for place in range(len(times))]
        data.append(
            {
                "x": times,
                "y": shares,
                "name": str(name),
                "type": "scatter",
                "mode": "lines",
                "line": {"shape": "hv", "dash": dash},
                "colour": colour,
            }
        )
    layout = {
        "showlegend": True,
        "xaxis": {"type": "log", "title": {"text": gettext("minutes from submit to end")}},
        "yaxis": {"range": [0, 102], "title": {"text": gettext("% of jobs")}},
    }
    return {"data": data, "layout": layout}


def by_job(jobs: Sequence[Mapping[str, Any]], names: Mapping[int, str]) -> dict[str, Any] | None:
    """Return each job's time in both simulations; below the diagonal the change is better."""
    known = [row for row in jobs if _is_known(row)]
    if not known:
        return None
    ends = [_minutes(row[key]) for row in known for key in ("was_s", "would_be_s")]
    edge = [min(ends), max(ends)]
    data: list[dict[str, Any]] = [
        {
            "x": edge,
            "y": edge,
            "name": gettext("no change"),
            "type": "scatter",
            "mode": "lines",
            "line": {"dash": "dash"},
            "colour": "text-3",
        }
    ]
    for verdict, name, colour in _POINTS:
        rows = [row for row in known if row["verdict"] == verdict]
        if rows:
            data.append(
                {
                    "x": [_minutes(row["was_s"]) for row in rows],
                    "y": [_minutes(row["would_be_s"]) for row in rows],
                    "text": [names.get(row["job"], str(row["job"])) for row in rows],
                    "name": str(name),
                    "type": "scatter",
                    "mode": "markers",
                    "colour": colour,
                }
            )
    axis = {"type": "log"}
    layout = {
        "showlegend": True,
        "xaxis": {**axis, "title": {"text": gettext("minutes, current")}},
        "yaxis": {**axis, "title": {"text": gettext("minutes, changed")}},
    }
    return {"data": data, "layout": layout}


def distribution_words(jobs: Sequence[Mapping[str, Any]]) -> str:
    """Describe the distribution in one sentence, for readers of the text."""
    known = [row for row in jobs if _is_known(row)]
    return gettext("%(jobs)s with a known end. A line further to the left is better.") % {
        "jobs": words.plural(len(known), "job", "jobs")
    }


def _is_known(row: Mapping[str, Any]) -> bool:
    """Whether a job has ended in fact and in both simulations."""
    return row["has_ended"] and all(row[key] is not None for key, *_ in _LINES)


def _minutes(seconds: float) -> float:
    return round(max(seconds / 60, LEAST_MINUTES), 3)


def what_if_verdict(result: Mapping[str, Any]) -> PageVerdict:
    """Return whether jobs complete sooner on average, and whether the slowest ones pay for it."""
    was, would_be = result["was"], result["would_be"]
    old, new = was["avg_jct_h"], would_be["avg_jct_h"]
    if not old or new is None:
        return PageVerdict(text=gettext("No answer: no job completed in both simulations."))
    share = (new - old) / old
    jobs = {
        "sooner": words.count(result["winner"]),
        "later": words.count(result["loser"]),
        "jobs": words.plural(
            sum(result[key] for key in ("winner", "loser", "same", "unknown")), "job", "jobs"
        ),
        "share": words.percent(abs(share)),
    }
    if abs(share) < NO_CHANGE:
        return PageVerdict(
            text=gettext(
                "No difference on average; "
                "of %(jobs)s, %(sooner)s complete sooner, %(later)s later."
            )
            % jobs
        )
    if share > 0:
        return PageVerdict(
            tone="warn",
            text=gettext(
                "Worse on average: jobs take %(share)s longer; "
                "of %(jobs)s, %(sooner)s complete sooner, %(later)s later."
            )
            % jobs,
        )
    slowest = _growth(was, would_be, "p99_jct_h")
    is_harmful = slowest > HARM
    return PageVerdict(
        tone="warn" if is_harmful else "ok",
        text=gettext(
            "Better on average: jobs take %(share)s less time; "
            "of %(jobs)s, %(sooner)s complete sooner, %(later)s later."
        )
        % jobs,
        detail=gettext("The slowest jobs pay for it: the p99 time grows by %(share)s.")
        % {"share": words.percent(slowest)}
        if is_harmful
        else "",
    )


def _growth(was: Mapping[str, Any], would_be: Mapping[str, Any], key: str) -> float:
    """Return the relative growth of a figure; 0 if it is unknown."""
    old, new = was.get(key), would_be.get(key)
    return (new - old) / old if old and new is not None else 0.0
