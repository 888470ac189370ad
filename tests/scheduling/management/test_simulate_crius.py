"""``manage.py simulate --rules crius``: rules and policies outside the product."""

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

HEADER = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,gpu_type\n"
LINES = "a,0,500,bert__760M,9000,128,1,a40\nb,10,500,bert__760M,9000,128,2,a100\n"
TIMES = {
    "bert_760M_128": {
        "1_a40_1_n_1_d": 12.0,
        "1_a40_1_n_2_d": 7.0,
        "1_a100_1_n_1_d": 6.0,
        "1_a100_1_n_2_d": 3.5,
        "1_a100_1_n_4_d": -1.0,
    }
}


@pytest.fixture
def given(tmp_path):
    """A workload and a folder of profiles, as arguments."""
    (tmp_path / "prof_database.json").write_text(json.dumps({"optimal": TIMES}))
    workload = tmp_path / "w.csv"
    workload.write_text(HEADER + LINES)
    return {"workload": workload, "profiles": tmp_path, "cluster": "a100:1x4,a40:1x2"}


def simulated(**options):
    out = StringIO()
    call_command("simulate", stdout=out, stderr=out, **options)
    return out.getvalue()


def test_the_artefacts_policy_runs_with_its_parameters(given, tmp_path):
    figures = tmp_path / "out.json"
    given |= {"rules": "crius", "policy": "crius", "json": figures}

    simulated(**given)
    free = json.loads(figures.read_text())
    simulated(**given, policy_arg=["types=false", "scaling=false"])
    bound = json.loads(figures.read_text())

    assert (free["policy"], free["rules"], free["completed"]) == ("crius", "crius", 2)
    assert [job["finish_s"] for job in free["per_job"]] == [600, 600]
    assert [job["finish_s"] for job in bound["per_job"]] == [1_200, 600]
    assert free["policy_ms"]["counted"] == free["rounds"] > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": "sia"}, "the rules crius have no policy 'sia'; they have crius, elasticflow"),
        ({"policy_arg": ["colour=red"]}, "policy crius has no parameter 'colour'"),
        ({"policy_arg": ["depth=9"]}, "depth is 9; use a whole number from 0 to 6"),
        ({"wraps": ["quota:most=4"]}, "--with does not apply to policies of the rules crius"),
        ({"profiles": None}, "the rules crius need --profiles"),
        ({"cluster": "a100:1x4"}, "a: the cluster has no devices of type 'a40'"),
        ({"rules": "events", "policy": "elasticflow-l"}, "policy 'elasticflow-l' not found"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(given, changes, message):
    with pytest.raises(CommandError, match=message):
        simulated(**{"rules": "crius", "policy": "crius", **given, **changes})


def test_rules_that_are_not_installed_are_named(given, settings):
    settings.SIMULATION_RULES = {"crius": "nowhere.crius.World"}

    with pytest.raises(CommandError, match="--rules crius needs the package nowhere"):
        simulated(**given, rules="crius", policy="crius")


def test_the_asked_type_is_a_wish_unless_it_is_said_to_bind(given, tmp_path):
    figures = tmp_path / "out.json"
    given |= {"rules": "events", "policy": "gavel", "json": figures}
    given["workload"].write_text(HEADER + LINES.splitlines()[0] + "\n")

    simulated(**given, knowledge="oracle")
    wish = json.loads(figures.read_text())["per_job"][0]
    simulated(**given, knowledge="oracle", types="asked")
    asked = json.loads(figures.read_text())["per_job"][0]

    assert (wish["finish_s"], asked["finish_s"]) == (3_000, 6_000)
