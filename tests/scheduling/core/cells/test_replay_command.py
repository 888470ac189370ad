"""``manage.py replay_cells`` in a fresh process: no database, no Redis, no secrets."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

ROOT = Path(__file__).resolve().parents[4]
CONFIG = {
    "physicalCluster": {
        "cellTypes": {"node": {"childCellType": "gpu", "childCellNumber": 2, "isNodeLevel": True}},
        "physicalCells": [{"cellType": "node", "cellAddress": "n0"}],
    },
    "virtualClusters": {"vision": {"virtualCells": [{"cellType": "node", "cellNumber": 1}]}},
}
TOO_MUCH = {
    **CONFIG,
    "virtualClusters": {"vision": {"virtualCells": [{"cellType": "node", "cellNumber": 2}]}},
}
SPEC = {"virtualCluster": "vision", "priority": 0, "leafCellType": "gpu", "leafCellNumber": 2}


def _run(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TESSERA_")}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "replay_cells", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    schedule = {
        "op": "schedule",
        "pod": "p",
        "phase": "Preempting",
        "suggested_nodes": "ALL",
        "spec": SPEC,
        "commit": True,
    }
    document = {
        "cases": [
            {"id": "one", "config": CONFIG, "events": [schedule, {"op": "delete", "pod": "p"}]},
            {"id": "two", "config": TOO_MUCH, "events": [{"op": "schedule", "pod": "q"}]},
        ]
    }
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_cases_are_chosen_one_by_one_or_together_whatever_their_ids_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.json"
    ids: list[object] = [7, "seven", ["x"], "\ud800", "seven"]
    cases = [{"id": name, "config": CONFIG, "events": [{"op": "assert"}]} for name in ids]
    path.write_text(json.dumps({"cases": cases, "more": 1e400}), encoding="utf-8-sig")

    call_command("replay_cells", str(path), "--case", "7", "seven", "--case", "['x']")

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["case"] for line in lines] == [7, "seven", ["x"], "seven"]
    assert all(line["outcome"] == {"kind": "ok"} for line in lines)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"cases": {}}', "[" * 100_000])
def test_a_file_that_is_no_document_of_cases_is_refused_in_words(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "none.json"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(CommandError, match=r"none\.json"):
        call_command("replay_cells", str(path))


@pytest.mark.parametrize(
    "spec",
    [
        {"leafCellNumber": 10**30},
        {"priority": 10**30},
        {"priority": float("nan")},
        {"affinityGroup": {"name": "g", "members": [{"podNumber": 10**30, "leafCellNumber": 2}]}},
        {"affinityGroup": {"name": "\ud800", "members": [{"podNumber": 2, "leafCellNumber": 2}]}},
        {"virtualCluster": "\u0000"},
    ],
)
def test_numbers_and_names_of_any_size_are_answered_and_the_next_pod_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: dict[str, object]
) -> None:
    path = tmp_path / "odd.json"
    event = {"op": "schedule", "pod": "p", "phase": "Filtering", "commit": True}
    events = [{**event, "spec": {**SPEC, **spec}}, {**event, "pod": "q", "spec": SPEC}]
    cases = [{"id": "odd", "config": CONFIG, "events": events}]
    path.write_text(json.dumps({"cases": cases}), encoding="utf-8")

    call_command("replay_cells", str(path))

    kinds = [json.loads(line)["outcome"]["kind"] for line in capsys.readouterr().out.splitlines()]
    assert kinds[0] in {"wait", "error"}
    assert kinds[1] == "bind"


def test_it_prints_one_line_per_event(cases: Path, tmp_path: Path) -> None:
    done = _run(tmp_path, str(cases), "--case", "one")

    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert [(line["case"], line["index"], line["op"]) for line in lines] == [
        ("one", 0, "schedule"),
        ("one", 1, "delete"),
    ]
    assert lines[0]["outcome"] == {"kind": "bind", "node": "n0", "leafCellIsolation": [0, 1]}
    assert lines[0]["groups"] == {"test/p": {"state": "Allocated", "lazy_preempted": False}}
    assert lines[1] == {
        "case": "one",
        "index": 1,
        "op": "delete",
        "outcome": {"kind": "ok"},
        "groups": {},
    }


def test_an_unknown_case_or_file_is_named(cases: Path) -> None:
    with pytest.raises(CommandError, match="three"):
        call_command("replay_cells", str(cases), "--case", "three")
    with pytest.raises(CommandError, match=r"nothing\.json"):
        call_command("replay_cells", "nothing.json")


def test_a_refused_configuration_is_the_only_line_of_its_case(cases: Path) -> None:
    out = io.StringIO()

    call_command("replay_cells", str(cases), "--case", "two", stdout=out)

    (line,) = [json.loads(line) for line in out.getvalue().splitlines()]
    assert (line["case"], line["index"], line["op"]) == ("two", -1, "init")
    assert line["outcome"]["kind"] == "platform_error"
    assert "needs 2, has 1" in line["outcome"]["message"]


def test_what_a_case_expects_changes_nothing(
    cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("replay_cells", str(cases))
    plain = capsys.readouterr().out
    document = json.loads(cases.read_text())
    for case in document["cases"]:
        case["expect_overall"] = case["expect_better"] = {"kind": "wait"}
        for event in case["events"]:
            event["expect"] = event["observed"] = {"kind": "wait", "node": "n9"}
    cases.write_text(json.dumps(document), encoding="utf-8")

    call_command("replay_cells", str(cases))

    assert capsys.readouterr().out == plain
