"""What is watched while a job runs: whom to tell of it."""

from dataclasses import dataclass
from typing import Any, Final

from scheduling.core.jobspec.errors import Place
from scheduling.core.jobspec.scalars import read_line
from scheduling.core.jobspec.table import OBJECT, Field, choice, read_list, read_object
from scheduling.core.notices import JOB_WORDS

USUAL_NOTIFY: Final = ("succeeded", "failed", "stopped")
MOST_READERS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """Of what in a job's life a mail is sent, and to whom.

    Attributes:
        on: words such as ``failed``; empty: of nothing.
        to: names of members of the tenant, beside the owner.
    """

    on: tuple[str, ...] = USUAL_NOTIFY
    to: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As it stands in a document."""
        readers = {"to": list(self.to)} if self.to else {}
        return {"on": list(self.on), **readers}


def _notify(value: object, place: Place) -> Notify:
    return Notify(**read_object(value, NOTIFY_FIELDS, place))


NOTIFY_FIELDS: Final = (
    Field(
        name="on",
        type="list of words",
        default=", ".join(USUAL_NOTIFY),
        help=f"Of what a mail is sent, instead of what you have chosen for all jobs: "
        f"{', '.join(JOB_WORDS)}; an empty list: of nothing.",
        read=lambda value, place: read_list(
            value,
            place,
            most=len(JOB_WORDS),
            words="words, such as [failed]",
            read=lambda item: choice(item, JOB_WORDS),
        ),
        schema={"type": "array", "items": {"enum": list(JOB_WORDS)}},
    ),
    Field(
        name="to",
        type="list of user names",
        default="you alone",
        help="Members of the tenant who get the mail as well.",
        read=lambda value, place: read_list(
            value,
            place,
            most=MOST_READERS,
            words="user names, such as [bob]",
            read=lambda item: read_line(item, 64),
        ),
        schema={"type": "array", "items": {"type": "string"}, "maxItems": MOST_READERS},
    ),
)

WATCH_FIELDS: Final = (
    Field(
        name="notify",
        type="object",
        default="what you have chosen",
        help="Whom to tell about the job's states by mail.",
        read=_notify,
        schema=OBJECT,
        fields=NOTIFY_FIELDS,
    ),
)
