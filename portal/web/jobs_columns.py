"""Order and columns of the list of jobs: read from the address, shown as menus and table heads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from django.http import HttpRequest, HttpResponse

from portal.i18n import gettext_lazy
from portal.web.jobs_filters import FilterLink, url_of
from scheduling.jobs.queries.ordered_jobs import JobOrder, job_order
from tenants.errors import InvalidError

COOKIE: Final = "tessera_job_columns"
COOKIE_SECONDS: Final = 365 * 24 * 3600
NO_COLUMNS: Final = "none"
COLUMNS: Final = {
    "submitted": gettext_lazy("Submitted"),
    "started": gettext_lazy("Started"),
    "ended": gettext_lazy("Ended"),
    "time": gettext_lazy("Time"),
    "hours": gettext_lazy("Device-hours"),
    "attempts": gettext_lazy("Attempts"),
    "priority": gettext_lazy("Priority"),
}
USUAL: Final = ("submitted", "time", "hours")
NUMBERS: Final = frozenset({"time", "hours", "attempts", "priority"})
ORDERS: Final = {
    JobOrder.NEWEST: gettext_lazy("Newest first"),
    JobOrder.OLDEST: gettext_lazy("Oldest first"),
    JobOrder.STARTED: gettext_lazy("Last started"),
    JobOrder.ENDED: gettext_lazy("Last ended"),
    JobOrder.LONGEST: gettext_lazy("Longest wait or run"),
    JobOrder.DEVICES: gettext_lazy("Most devices"),
    JobOrder.DEVICE_HOURS: gettext_lazy("Most device-hours"),
}
_ORDER_OF: Final = {
    "submitted": JobOrder.NEWEST,
    "started": JobOrder.STARTED,
    "ended": JobOrder.ENDED,
    "time": JobOrder.LONGEST,
    "hours": JobOrder.DEVICE_HOURS,
    "wants": JobOrder.DEVICES,
}
"""Columns whose head is a link that sorts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnHead:
    """Head of a column.

    Attributes:
        url: the list sorted by the column; empty if it cannot be sorted.
        sort: value of ``aria-sort``; empty if the list is not sorted by the column.
    """

    name: str
    text: str
    url: str = ""
    sort: str = ""
    is_number: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """Order and columns of one page.

    Attributes:
        order: the order in the address; None for the usual one of the page.
        columns: names of the optional columns, in the order of the table.
        given: options in the address, for links that keep them.
    """

    order: JobOrder | None
    columns: tuple[str, ...]
    given: Mapping[str, str]

    @property
    def is_usual(self) -> bool:
        """Return whether the page shows the usual columns, which narrow windows reduce."""
        return self.columns == USUAL

    def heads(self, query: Mapping[str, str]) -> tuple[ColumnHead, ...]:
        """Return the heads of the optional columns; ``query`` contains the active filters."""
        return tuple(self.head(name, text, query) for name, text in self._chosen())

    def head(self, name: str, text: str, query: Mapping[str, str]) -> ColumnHead:
        """Return the head of one column; a second click on *Submitted* reverses the order."""
        order = _ORDER_OF.get(name)
        is_reversed = name == "submitted" and self.order is JobOrder.OLDEST
        sort = "ascending" if is_reversed else "descending" if order is self.order else ""
        wanted = JobOrder.OLDEST if sort == "descending" and name == "submitted" else order
        return ColumnHead(
            name=name,
            text=text,
            url=url_of({**query, "order": wanted.value}) if wanted else "",
            sort=sort if order else "",
            is_number=name in NUMBERS,
        )

    def orders(self, query: Mapping[str, str]) -> tuple[FilterLink, ...]:
        """Return the menu of orders; the active one is a link to the usual order."""
        return tuple(
            FilterLink(
                text=text,
                url=url_of({**query, "order": "" if order is self.order else order.value}),
                on=order is self.order,
            )
            for order, text in ORDERS.items()
        )

    def choices(self, query: Mapping[str, str]) -> tuple[FilterLink, ...]:
        """Return the menu of columns; each link shows or hides one."""
        return tuple(
            FilterLink(
                text=text,
                url=url_of({**query, "columns": self._toggled(name)}),
                on=name in self.columns,
            )
            for name, text in COLUMNS.items()
        )

    def remember(self, request: HttpRequest, response: HttpResponse) -> None:
        """Store columns of the address in this browser, for later visits without them."""
        if "columns" in self.given:
            response.set_cookie(
                COOKIE,
                self.given["columns"],
                max_age=COOKIE_SECONDS,
                samesite="Lax",
                secure=request.is_secure(),
                httponly=True,
            )

    def _chosen(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, COLUMNS[name]) for name in self.columns)

    def _toggled(self, name: str) -> str:
        shown = [one for one in COLUMNS if (one in self.columns) is not (one == name)]
        return ",".join(shown) or NO_COLUMNS


def list_options(request: HttpRequest) -> ListOptions:
    """Read the options of a list; unknown names do not count."""
    query = request.GET
    wanted = query.get("columns", "")
    columns = _columns(wanted) or _columns(request.COOKIES.get(COOKIE, "")) or USUAL
    columns = () if columns == (NO_COLUMNS,) else columns
    try:
        order = job_order(query["order"]) if query.get("order") else None
    except InvalidError:
        order = None
    given = {"order": order.value if order else ""}
    if _columns(wanted):
        given["columns"] = ",".join(columns) or NO_COLUMNS
    return ListOptions(order=order, columns=columns, given=given)


def _columns(text: str) -> tuple[str, ...]:
    names = text[:200].split(",")
    if names == [NO_COLUMNS]:
        return (NO_COLUMNS,)
    return tuple(name for name in COLUMNS if name in names)
