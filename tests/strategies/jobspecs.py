"""Documents of valid jobs, and anything at all that JSON can hold."""

from hypothesis import strategies as st

CHARACTERS = st.characters(
    exclude_categories=("Cs", "Cc", "Cf", "Co", "Zl", "Zp"), exclude_characters="\0"
)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)

KEYS = st.sampled_from(
    [
        "name", "roles", "worker", "command", "devices", "env", "secrets", "completion", "source",
        "git", "url", "retries", "labels", "after", "priority", "class", "gang", "elastic",
        "memory", "not_before", "max_duration", "compat", "ports", "device_types", "within",
        "pinned_cell",
    ]
)  # fmt: skip
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=20)
    | st.sampled_from(["", "1h", "8GiB", "any", "none", "\ud800", "(redacted)", 10**400]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(KEYS | st.text(max_size=8), inner, max_size=6)
        | st.dictionaries(st.integers() | st.none(), inner, max_size=2)
    ),
    max_leaves=25,
)

_LINES = st.text(CHARACTERS, min_size=1, max_size=63).filter(lambda text: text == text.strip())
_WORDS = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
_NAMES = st.from_regex(r"[A-Z]{1,3}_[A-Z0-9]{1,5}", fullmatch=True)
_COMMANDS = ANY_TEXT.filter(lambda text: text.strip())
_MEMORY = st.integers(2**20, 2**46) | st.sampled_from(["8GB", "8GiB", "512MiB", "1.5GiB"])
_DURATIONS = st.integers(1, 86_400) | st.sampled_from(["90s", "15m", "2h", "1d", "1d2h30m"])


@st.composite
def role_documents(draw):
    instances = draw(st.integers(1, 20))
    minimum = st.just(-1) | st.integers(1, instances)
    names = draw(st.lists(_NAMES, unique=True, max_size=4))
    return {
        "command": draw(_COMMANDS),
        "instances": instances,
        **draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "devices": st.integers(1, 16),
                    "device_types": st.lists(_WORDS, unique=True, max_size=3) | st.just("any"),
                    "within": st.sampled_from(["pcie", "socket", "node", "rack"]),
                    "cpus": st.integers(1, 64) | st.floats(0.01, 64),
                    "memory": _MEMORY,
                    "image": st.sampled_from(["a", "reg.example.org:5000/a/b:1.2", "a/b"]),
                    "env": st.fixed_dictionaries(dict.fromkeys(names[:2], ANY_TEXT)),
                    "secrets": st.fixed_dictionaries(dict.fromkeys(names[2:], ANY_TEXT)),
                    "ports": st.dictionaries(_WORDS, st.integers(1, 5), max_size=3),
                    "completion": st.fixed_dictionaries(
                        {}, optional={"min_failed": minimum, "min_succeeded": minimum}
                    ),
                },
            )
        ),
    }


@st.composite
def job_documents(draw):
    roles = draw(st.dictionaries(_WORDS, role_documents(), min_size=1, max_size=3))
    document = {
        "name": draw(_LINES),
        "virtual_cluster": draw(_WORDS),
        "roles": roles,
        **draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "note": ANY_TEXT.filter(_is_note),
                    "labels": st.dictionaries(_WORDS, _LINES | st.just(""), max_size=3),
                    "priority": st.integers(0, 1000) | st.sampled_from(["prod", "test"]),
                    "class": st.sampled_from(["guaranteed", "opportunistic"]),
                    "max_duration": _DURATIONS,
                    "not_before": st.datetimes(
                        min_value=_moment(2001), max_value=_moment(2199), timezones=_zones()
                    ).map(lambda moment: moment.isoformat()),
                    "held": st.booleans(),
                    "after": st.lists(st.integers(1, 10**6), unique=True, max_size=3),
                    "retries": st.dictionaries(
                        st.sampled_from(["user", "resource-limit", "node", "preempted"]),
                        st.integers(-1, 100),
                    ),
                    "grace_seconds": st.integers(0, 3600),
                    "source": st.sampled_from(
                        [
                            "none",
                            {"archive": "ab" * 32},
                            {"git": {"url": "https://example.org/a.git", "ref": "v1"}},
                            {"git": {"url": "git@example.org:a/b"}},
                        ]
                    ),
                    "gang": st.booleans(),
                },
            )
        ),
    }
    for role in roles.values():
        if document.get("class") != "opportunistic" and "device_types" not in role:
            role.update(draw(st.just({}) | st.fixed_dictionaries({"pinned_cell": _LINES})))
    return document


def _is_note(text):
    return all(char in "\n\t" or char.isprintable() for char in text)


def _moment(year):
    from datetime import datetime

    return datetime(year, 1, 2)  # noqa: DTZ001 - hypothesis adds the zone


def _zones():
    from datetime import timedelta, timezone

    return st.integers(-720, 720).map(lambda minutes: timezone(timedelta(minutes=minutes)))
