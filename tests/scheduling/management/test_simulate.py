"""``manage.py simulate``: what it prints, what it writes and what it refuses."""

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from django.conf import settings as installed
from django.core.management import CommandError, call_command
from django.utils.module_loading import import_string

from scheduling.core.policies import COMBINATORS, POLICIES
from scheduling.core.workloads.readers import TraceFormat
from scheduling.management.simulations import find_rules
from tests.benchmarks.reproductions.made_up import profiles

WORKLOAD = "name,time,application,num_replicas,batch_size\n"
LINES = "cifar10-0,0,cifar10,1,128\ncifar10-1,90,cifar10,2,256\n"


@pytest.fixture
def given(tmp_path):
    """A workload and a folder of profiles, as arguments."""
    app = tmp_path / "profiles" / "cifar10"
    app.mkdir(parents=True)
    read = profiles("a")
    for name in ("placements-a", "scalability-a", *(f"validation-{128 << n}" for n in range(4))):
        (app / f"{name}.csv").write_text(read(f"cifar10/{name}.csv"))
    workload = tmp_path / "w.csv"
    workload.write_text(WORKLOAD + LINES)
    return {"workload": workload, "profiles": tmp_path / "profiles", "cluster": "a:2x4"}


def simulated(**options):
    out = StringIO()
    call_command("simulate", stdout=out, stderr=out, **options)
    return out.getvalue()


def test_the_figures_go_to_the_terminal_and_to_files(given, tmp_path):
    figures, timeline = tmp_path / "out.json", tmp_path / "rounds.jsonl"

    text = simulated(**given, policy="sia", json=figures, timeline=timeline)

    document = json.loads(figures.read_text())
    assert (document["policy"], document["rules"], document["workload"]) == ("sia", "sia", "w.csv")
    assert (document["jobs"], document["completed"]) == (2, 2)
    assert f"avg_jct_h: {document['avg_jct_h']}" in text
    assert "the policy saw: observed performance, no sizes, each job its own history" in text
    rounds = [json.loads(line) for line in timeline.read_text().splitlines()]
    assert len(rounds) >= document["rounds"]
    assert rounds[0]["jobs"]["cifar10-0"]["type"] == "a"


def test_the_list_of_policies_names_every_parameter_with_its_bounds():
    text = simulated(list_policies=True)

    assert [line.split(":")[0].split(" ")[0] for line in text.splitlines() if line[0] != " "] == (
        sorted(POLICIES)
    )
    assert "fairness=-0.5: fairness power; not 0 (a number from -5 to 5)" in text


def test_the_list_of_rules_names_every_parameter_with_its_bounds():
    text = simulated(list_rules=True)

    assert [line.split(":")[0] for line in text.splitlines() if line[0] != " "] == (
        list(COMBINATORS)
    )
    assert "min_run=300.0: minimum time between changes of a job, in seconds (a" in text


def test_rules_around_the_policy_are_part_of_its_name(given):
    text = simulated(**given, policy="sia", wraps=["quota:most=4", "hysteresis"])

    assert 'policy: "sia+hysteresis+quota"' in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": "lottery"}, "policy 'lottery' not found"),
        ({"policy_arg": ["colour=red"]}, "policy sia has no parameter 'colour'"),
        ({"wraps": ["luck"]}, "policy rule 'luck' not found"),
        ({"wraps": ["quota:most=0"]}, "most is 0; use a whole number from 1 to 100000"),
        ({"policy_arg": ["growth=1"]}, "growth is 1; use a whole number from 2 to 64"),
        ({"policy_arg": ["fairness=0"]}, "fairness is 0"),
        ({"cluster": "a:2"}, "'a:2' is not of the form"),
        ({"cluster": "b:2x4"}, "no profile for any of b"),
        ({"interval": 0.0}, "--interval is 0; use 1 to 86400 seconds"),
        ({"workload": Path("nowhere.csv")}, "cannot read or write"),
        ({"workload": None}, "give --workload"),
        ({"json": Path("nowhere/out.json")}, "--json: nowhere/out.json cannot be written"),
        ({"timeline": Path("nowhere/t.jsonl")}, "cannot read or write"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(given, changes, message):
    with pytest.raises(CommandError, match=message):
        simulated(**{**given, "policy": "sia", **changes})


def test_a_bad_line_is_named_with_its_number(given):
    given["workload"].write_text(WORKLOAD + LINES + "cifar10-2,-1,cifar10,1,128\n")

    with pytest.raises(CommandError, match=r"w.csv:4: time is -1; use at least 0"):
        simulated(**given, policy="sia")


def test_a_bad_profile_is_named_with_its_line(given):
    path = given["profiles"] / "cifar10" / "placements-a.csv"
    path.write_text(path.read_text() + "\n0,32,1,0\n")
    line = len(path.read_text().splitlines())

    with pytest.raises(CommandError, match=rf"placements-a.csv:{line}: placement is '0'"):
        simulated(**given, policy="sia")


@pytest.mark.parametrize("name", sorted(installed.SIMULATION_RULES))
def test_rules_of_the_settings_build_worlds(name):
    assert callable(find_rules(name))


@pytest.mark.parametrize("path", sorted(installed.SIMULATION_FORMATS.values()))
def test_formats_of_the_settings_are_formats(path):
    assert isinstance(import_string(path), TraceFormat)


def test_rules_of_a_package_that_is_not_installed_are_refused_with_the_remedy(given, settings):
    settings.SIMULATION_RULES = {"sia": "nowhere.sia.SiaWorld"}
    settings.SIMULATION_FORMATS = {"sia": "nowhere.sia.FORMAT"}

    with pytest.raises(CommandError, match=r"--rules sia needs the package nowhere.*checkout"):
        simulated(**given, policy="fifo")


def test_a_format_that_is_not_installed_is_refused_only_if_it_is_wanted(tmp_path, settings):
    settings.SIMULATION_FORMATS = {"sia": "benchmarks.nowhere.sia.FORMAT"}
    workload = tmp_path / "w.csv"
    workload.write_text("job_id,submission_time,duration,num_gpu\na,0,60,1\n")
    options = {"workload": workload, "cluster": "a:1x1", "rules": "events", "policy": "fifo"}

    assert "completed: 1" in simulated(**options)
    with pytest.raises(CommandError, match=r"--format sia needs the package benchmarks.nowhere,"):
        simulated(**options, format="sia")


def test_a_missing_dependency_of_installed_rules_is_not_hidden(given, settings, tmp_path):
    (tmp_path / "half_installed.py").write_text("import not_there\n")
    settings.SIMULATION_RULES = {"sia": "half_installed.World"}

    sys.path.insert(0, str(tmp_path))
    try:
        with pytest.raises(ModuleNotFoundError, match="not_there"):
            simulated(**given, policy="fifo")
    finally:
        sys.path.remove(str(tmp_path))


def test_it_needs_neither_a_database_nor_a_broker_nor_a_secret(given, tmp_path):
    root = Path(__file__).resolve().parents[3]
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TESSERA_")},
        "TESSERA_DATA_DIR": str(tmp_path / "nothing"),
        "TESSERA_REDIS_URL": "redis://127.0.0.1:9/0",
    }
    environ.pop("DJANGO_SETTINGS_MODULE", None)
    words = [f"--{name}={value}" for name, value in given.items()]

    done = subprocess.run(
        [sys.executable, "manage.py", "simulate", *words, "--policy=fifo"],
        cwd=root,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "completed: 2" in done.stdout
    assert not (tmp_path / "nothing" / "db.sqlite3").exists()
