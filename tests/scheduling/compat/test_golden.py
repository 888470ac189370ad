"""Documents as people have them come out as expected, and no key of any is dropped in silence."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduling.compat.result import ImportRefusedError
from scheduling.core.cells import feasible
from scheduling.core.cells.hived import spec_from_hived
from scheduling.core.jobspec import parse
from scheduling.core.jobspec.errors import DocumentPlace
from tests.support.imports import FORMATS, HIVED, expected_path, format_of, inputs, outcome

CASES = [pytest.param(name, path, id=f"{name}-{path.stem}") for name, path in inputs()]
GOOD = [
    case
    for case in CASES
    if "errors" not in json.loads(expected_path(Path(str(case.values[1]))).read_text())
]
JOBS = [case for case in GOOD if case.values[0] != HIVED]
CLUSTERS = [case for case in GOOD if case.values[0] == HIVED]
YAML = [case for case in GOOD if case.values[0] != "sbatch"]
SCRIPTS = [case for case in GOOD if case.values[0] == "sbatch"]
ODD: tuple[Any, ...] = ("~odd~", 7, True, {"odd": 1}, ["odd"])
Path_ = tuple[Any, ...]


@pytest.mark.parametrize(("name", "path"), CASES)
def test_a_document_comes_out_as_expected(name: str, path: Path) -> None:
    assert outcome(name, path.read_text()) == json.loads(expected_path(path).read_text())


@pytest.mark.parametrize(("name", "path"), JOBS)
def test_a_translation_is_a_job_that_would_be_accepted(name: str, path: Path) -> None:
    found = outcome(name, path.read_text())

    for spec in [found["spec"], *found["more"]]:
        if spec:
            parse(spec)
    assert found["spec"] or found["nodes"]


@pytest.mark.parametrize(("name", "path"), CLUSTERS)
def test_a_taken_cluster_can_keep_what_it_promises(name: str, path: Path) -> None:
    found = outcome(name, path.read_text())

    assert feasible(spec_from_hived(found["spec"])).ok
    assert found["spec"] == outcome(name, json.dumps(found["spec"]))["spec"]


@pytest.mark.parametrize(("name", "path"), CLUSTERS)
def test_a_key_that_a_cluster_does_not_know_is_named_wherever_it_stands(
    name: str, path: Path
) -> None:
    document = yaml.safe_load(path.read_text())
    reported = {entry["field"] for entry in outcome_of(name, document)["unsupported"]}

    for holder in [(), *objects(document)]:
        changed = copy.deepcopy(document)
        at(changed, holder)["unheardOf"] = 1
        found = outcome_of(name, changed)

        named = {error["field"] for error in found.get("errors", ())}
        kept = any(path_of(holder[: length + 1]) in reported for length in range(len(holder)))
        assert kept or any(field.endswith("unheardOf") for field in named)


@pytest.mark.parametrize(("name", "path"), YAML)
def test_no_key_of_a_document_is_dropped_in_silence(name: str, path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    plain = outcome_of(name, document)

    unaccounted = [keys for keys in paths(document) if not matters(name, document, keys, plain)]

    assert unaccounted == []


@pytest.mark.parametrize(("name", "path"), SCRIPTS)
def test_no_option_of_a_script_is_dropped_in_silence(name: str, path: Path) -> None:
    lines = path.read_text().split("\n")
    plain = without_comments(outcome(name, path.read_text()))

    for number, line in enumerate(lines):
        if line.startswith("#SBATCH"):
            odd = [
                without_comments(
                    outcome(name, "\n".join([*lines[:number], other, *lines[number + 1 :]]))
                )
                for other in ("#", "#SBATCH --job-name=~odd~ --begin=odd")
            ]
            assert any(found != plain for found in odd), line


def test_every_format_has_fifteen_documents_good_and_bad() -> None:
    for name in FORMATS:
        mine = [case for case in CASES if case.values[0] == name]
        good = [case for case in GOOD if case.values[0] == name]
        assert len(mine) >= 15
        assert len(good) < len(mine)


@pytest.mark.parametrize(("name", "path"), JOBS)
def test_the_format_of_a_document_is_recognised(name: str, path: Path) -> None:
    assert format_of(path.read_text()) == name


def test_a_native_document_is_no_other_systems() -> None:
    assert format_of("name: x\nvirtual_cluster: v\nroles: {w: {command: run}}\n") == ""
    with pytest.raises(ImportRefusedError):
        format_of("a: [")


def paths(document: Any, at: Path_ = ()) -> Iterator[Path_]:
    """Every key below a document, outer ones first."""
    entries = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in entries:
        yield (*at, key)
        if isinstance(value, dict | list):
            yield from paths(value, (*at, key))


def objects(document: Any) -> Iterator[Path_]:
    """Every place below a document at which an object stands."""
    return (keys for keys in paths(document) if isinstance(at(document, keys), dict))


def at(document: Any, keys: Path_) -> Any:
    """What stands at a place of a document."""
    for key in keys:
        document = document[key]
    return document


def path_of(keys: Path_) -> str:
    """The path of a key as importers write it."""
    place = DocumentPlace()
    for key in keys:
        place = place.item(key) if isinstance(key, int) else place.child(key)
    return place.path


def matters(name: str, document: Any, keys: Path_, plain: dict[str, Any]) -> bool:
    """Whether a key is reported, alone or with what holds it, or changes what comes out.

    It does if something comes out differently without it, or with something odd there.
    """
    reported = {entry["field"] for entry in plain["unsupported"]}
    if any(path_of(keys[: length + 1]) in reported for length in range(len(keys))):
        return True
    for odd in (None, *ODD):
        changed = copy.deepcopy(document)
        holder = at(changed, keys[:-1])
        if odd is None:
            del holder[keys[-1]]
        else:
            holder[keys[-1]] = odd
        if outcome_of(name, changed) != plain:
            return True
    return False


def outcome_of(name: str, document: Any) -> dict[str, Any]:
    """What comes out of a document that is sent as JSON, which is read much faster than YAML."""
    return outcome(name, json.dumps(document), "application/json")


def without_comments(found: dict[str, Any]) -> dict[str, Any]:
    """An outcome whose commands have no lines that are comments."""
    for spec in [found.get("spec"), *found.get("more", ())]:
        for role in (spec or {}).get("roles", {}).values():
            kept = [line for line in role["command"].split("\n") if not line.startswith("#")]
            role["command"] = "\n".join(kept)
    return found
