"""Settings for monitoring a running job: mail, idle devices, and log rules."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduling.core.jobspec.errors import DocumentPlace, RefusalError
from scheduling.core.jobspec.scalars import DAY, read_duration, read_integer, read_line
from scheduling.core.jobspec.table import (
    AMOUNT,
    OBJECT,
    Field,
    choice,
    number_schema,
    read_list,
    read_object,
    text_schema,
)
from scheduling.core.messages import sentence
from scheduling.core.notices import JOB_WORDS
from scheduling.core.watching.idleness import LEAST_NOTICE, IdlePolicy, IdleScope
from scheduling.core.watching.log_metrics import MOST_METRICS, LogMetric, NumberPattern
from scheduling.core.watching.log_rules import (
    LONGEST_NAME,
    LONGEST_PATTERN,
    LogAction,
    LogRuleSpec,
    Pattern,
    PatternError,
)
from tessera.messages import english_of

USUAL_NOTIFY: Final = ("succeeded", "failed", "stopped")
MOST_READERS: Final = 20
MOST_RULES: Final = 20
NO_POLICY: Final = "none"
LONGEST_METRIC: Final = 100
_METRIC_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ ./:@%()+-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """Mail settings of a job: events and receivers.

    Attributes:
        on: names of events such as ``failed``; empty for none.
        to: names of tenant members who get the mail in addition to the owner.
    """

    on: tuple[str, ...] = USUAL_NOTIFY
    to: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the form of a document."""
        readers = {"to": list(self.to)} if self.to else {}
        return {"on": list(self.on), **readers}


def _notify(value: object, place: DocumentPlace) -> Notify:
    return Notify(**read_object(value, NOTIFY_FIELDS, place))


def idle_policy_of(document: object) -> IdlePolicy | None:
    """Read the policy of a stored document; return None if the job sets none."""
    if document == NO_POLICY:
        return IdlePolicy(exempt=True)
    if not isinstance(document, Mapping):
        return None
    scope = IdleScope(document.get("devices", IdleScope.ALL))
    return IdlePolicy(**{**document, "devices": scope})


def idle_policy_document(policy: IdlePolicy) -> dict[str, Any] | str:
    """Return a policy in the form of a document."""
    if policy.exempt:
        return NO_POLICY
    stop = policy.stop_after if policy.stop_after is not None else "never"
    scope = {} if policy.devices is IdleScope.ALL else {"devices": policy.devices.value}
    return {"below": policy.below, "warn_after": policy.warn_after, "stop_after": stop, **scope}


def log_rule_documents(rules: tuple[LogRuleSpec, ...]) -> list[dict[str, str]] | None:
    """Return the rules in the form of a document, or None without rules."""
    found = [
        {"name": rule.name, "pattern": rule.pattern, "action": rule.action.value} for rule in rules
    ]
    return found or None


def log_metric_documents(metrics: tuple[LogMetric, ...]) -> list[dict[str, str]] | None:
    """Return metrics in logs in the form of a document, or None without any."""
    return [{"name": one.name, "pattern": one.pattern} for one in metrics] or None


def _idle_policy(value: object, place: DocumentPlace) -> IdlePolicy | None:
    if value == NO_POLICY:
        return IdlePolicy(exempt=True)
    faults = len(place.errors)
    given = read_object(value, IDLE_FIELDS, place)
    if len(place.errors) > faults:
        return None
    given["stop_after"] = {None: IdlePolicy().stop_after, "never": None}.get(
        given.get("stop_after"), given.get("stop_after")
    )
    policy = IdlePolicy(**given)
    if policy.stop_after is not None and policy.stop_after < policy.warn_after + LEAST_NOTICE:
        raise RefusalError(
            sentence("stops-too-soon"),
            sentence("write-later-stop"),
            "conflict",
        )
    return policy


def _stop_after(value: object, _place: DocumentPlace) -> int | str:
    return "never" if value == "never" else read_duration(value, 600, 7 * DAY)


def _log_rules(value: object, place: DocumentPlace) -> tuple[LogRuleSpec, ...]:
    if not isinstance(value, list | tuple) or len(value) > MOST_RULES:
        raise RefusalError(
            sentence("not-rules"), sentence("write-rules", most=MOST_RULES), "wrong-type"
        )
    found = []
    for index, item in enumerate(value):
        there = place.item(index)
        faults = len(there.errors)
        given = read_object(item, LOG_RULE_FIELDS, there)
        if len(there.errors) == faults:
            name = given.get("name") or given["pattern"][:LONGEST_NAME]
            found.append(LogRuleSpec(**{**given, "name": name}))
    return tuple(found)


def _log_metrics(value: object, place: DocumentPlace) -> tuple[LogMetric, ...]:
    if not isinstance(value, list | tuple) or len(value) > MOST_METRICS:
        raise RefusalError(
            sentence("not-log-metrics"),
            sentence("write-log-metrics", most=MOST_METRICS),
            "wrong-type",
        )
    found = []
    for index, item in enumerate(value):
        there = place.item(index)
        faults = len(there.errors)
        given = read_object(item, LOG_METRIC_FIELDS, there)
        if len(there.errors) == faults:
            found.append(LogMetric(**given))
    return tuple(found)


def _metric_name(value: object, _place: DocumentPlace) -> str:
    text = read_line(value, LONGEST_METRIC)
    if not _METRIC_NAME.fullmatch(text):
        raise RefusalError(sentence("not-metric-name"), sentence("write-metric-name"))
    return text


def _number_pattern(value: object, place: DocumentPlace) -> str:
    return _pattern(value, place, NumberPattern)


def _pattern(
    value: object, _place: DocumentPlace, kind: type[Pattern] | type[NumberPattern] = Pattern
) -> str:
    text = read_line(value, LONGEST_PATTERN)
    try:
        kind(text)
    except PatternError as error:
        raise RefusalError(
            sentence("not-pattern"), sentence("correct-pattern", error=str(error))
        ) from None
    return text


NOTIFY_FIELDS: Final = (
    Field(
        name="on",
        type="list of words",
        default=", ".join(USUAL_NOTIFY),
        help=f"Events that send a mail, instead of your notification settings: "
        f"{', '.join(JOB_WORDS)}; an empty list: no mail.",
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
        default="only you",
        help="Tenant members who also get the mail.",
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

IDLE_FIELDS: Final = (
    Field(
        name="below",
        type="percent",
        default="5",
        help="A device is idle while it is busy for less than this share of the time.",
        read=lambda value, _place: read_integer(value, 1, 100),
        schema=number_schema(1, 100),
    ),
    Field(
        name="warn_after",
        type="seconds, or a string such as 30m",
        default="30m",
        help="Idle time of all devices after which you get a warning.",
        read=lambda value, _place: read_duration(value, 300, 7 * DAY),
        schema=AMOUNT,
    ),
    Field(
        name="stop_after",
        type="seconds, a string such as 1h, or never",
        default="1h",
        help="Idle time of all devices after which the job is stopped; at least 5 minutes after "
        "the warning.",
        read=_stop_after,
        schema=AMOUNT,
    ),
    Field(
        name="devices",
        type="all or any",
        default="all",
        help="all: the times count while all devices are idle. any: while at least one device is.",
        read=lambda value, _place: IdleScope(choice(value, [one.value for one in IdleScope])),
        schema={"enum": [one.value for one in IdleScope]},
    ),
)

LOG_RULE_FIELDS: Final = (
    Field(
        name="name",
        type="text",
        default="the pattern",
        help="Name of the rule in events.",
        read=lambda value, _place: read_line(value, LONGEST_NAME),
        schema=text_schema(LONGEST_NAME),
    ),
    Field(
        name="pattern",
        type="pattern",
        required=True,
        help=sentence("help-log-pattern"),
        read=_pattern,
        schema=text_schema(LONGEST_PATTERN),
    ),
    Field(
        name="action",
        type=", ".join(LogAction),
        required=True,
        help=sentence("help-log-action"),
        read=lambda value, _place: LogAction(choice(value, list(LogAction))),
        schema={"enum": list(LogAction)},
    ),
)


LOG_METRIC_FIELDS: Final = (
    Field(
        name="name",
        type="text",
        required=True,
        help="Name of the metric.",
        read=_metric_name,
        schema=text_schema(LONGEST_METRIC),
    ),
    Field(
        name="pattern",
        type="pattern",
        required=True,
        help="Pattern whose first group, or group named value, matches the number. A group named "
        "step matches the step.",
        read=_number_pattern,
        schema=text_schema(LONGEST_PATTERN),
    ),
)


def _item_schema(fields: tuple[Field, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            known.name: {"description": english_of(known.help), **known.schema} for known in fields
        },
        "required": [known.name for known in fields if known.required],
        "additionalProperties": False,
    }


WATCH_FIELDS: Final = (
    Field(
        name="notify",
        type="object",
        default="your notification settings",
        help="Receivers and events of mails about the job.",
        read=_notify,
        schema=OBJECT,
        fields=NOTIFY_FIELDS,
    ),
    Field(
        name="idle_policy",
        type="object, or none",
        default="as in the virtual cluster",
        help="Warning and stop of the job when all its devices are idle. none: no action, for "
        "interactive work.",
        read=_idle_policy,
        schema={"type": ["object", "string"]},
        fields=IDLE_FIELDS,
    ),
    Field(
        name="log_rules",
        type="list of rules",
        default="none",
        help="Actions for log lines that match a pattern, in addition to the rules for all jobs. "
        f"Each rule has a pattern, an action ({', '.join(LogAction)}) and optionally a name.",
        read=_log_rules,
        schema={"type": "array", "maxItems": MOST_RULES, "items": _item_schema(LOG_RULE_FIELDS)},
    ),
    Field(
        name="metrics",
        type="list of metrics",
        default="none",
        help="Numbers in the log that the page of the job draws. Each metric has a name and a "
        "pattern, for example loss=([0-9.]+).",
        read=_log_metrics,
        schema={
            "type": "array",
            "maxItems": MOST_METRICS,
            "items": _item_schema(LOG_METRIC_FIELDS),
        },
    ),
)
