"""Differences between specifications."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.spec_differences import (
    LONGEST_VALUE,
    MOST_ROWS,
    options_of,
    spec_rows,
)


def spec(command: str = "python train.py --lr 0.1", **more: Any) -> dict[str, Any]:
    return {
        "name": "any",
        "labels": {"a": "b"},
        "roles": {"worker": {"instances": 1, "devices": 2, "command": command, **more}},
    }


def test_rows_that_differ_come_first_and_options_are_rows_of_their_own() -> None:
    rows = spec_rows([spec(), spec("python train.py --lr=0.3 --bf16", devices=4)])

    assert [(row.path, row.values) for row in rows if row.differs] == [
        ("--lr", ("0.1", "0.3")),
        ("--bf16", (None, "on")),
        ("roles.worker.devices", ("2", "4")),
    ]
    assert [row.path for row in rows if not row.differs] == [
        "roles.worker.instances",
        "roles.worker.command",
    ]


def test_options_of_two_roles_have_the_name_of_their_role() -> None:
    both = spec()
    both["roles"]["server"] = {"command": "serve --port 1"}

    assert {row.path for row in spec_rows([both]) if row.is_option} == {
        "worker --lr",
        "server --port",
    }


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("train --a 1 --b=2 --c --d -3", {"--a": "1", "--b": "2", "--c": "on", "--d": "-3"}),
        ("train --name 'two words'", {"--name": "two words"}),
        ("train --open 'quote", {"--open": "'quote"}),
        (["python", "x.py", "--lr", "1"], {"--lr": "1"}),
        ("git checkout -- file; a -- b", {}),
        (None, {}),
    ],
)
def test_options_of_commands(command: object, options: dict[str, str]) -> None:
    assert options_of(command) == options


_LEAF = st.none() | st.booleans() | st.integers() | st.text(max_size=400) | st.lists(st.text())
_SPEC = st.recursive(
    _LEAF, lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=4), max_leaves=20
)


@given(st.dictionaries(st.text(max_size=5), _SPEC, max_size=4), st.integers(1, 4))
def test_equal_specifications_do_not_differ(one: dict[str, Any], count: int) -> None:
    one.pop("roles", None)
    rows = spec_rows([one] * count)

    assert len(rows) <= MOST_ROWS
    for row in rows:
        assert len(row.values) == count
        assert not row.differs
        assert all(value is not None and len(value) <= LONGEST_VALUE for value in row.values)
