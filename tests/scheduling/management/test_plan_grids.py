"""``manage.py plan_grids`` in a fresh process: no database, no Redis, no secrets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

ROOT = Path(__file__).resolve().parents[3]
PIPELINES = [{"forward": [1, 1], "backward": [2, 2], "transfer": [1], "micro_batches": 2}]
PLANS = [
    {"stages": 1, "data": 2, "tensor": 1, "step_s": 2.0},
    {"stages": 1, "data": 1, "tensor": 2, "step_s": 3.0},
]
ESTIMATES = {"bert": {"1_a100_1_n_2_d": {"plans": PLANS}}}


@pytest.fixture
def pipelines(tmp_path: Path) -> Path:
    path = tmp_path / "pipelines.json"
    path.write_text(json.dumps(PIPELINES), encoding="utf-8-sig")
    return path


def test_it_needs_no_database_redis_or_secrets(pipelines: Path, tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TESSERA_")}
    environment.pop("DJANGO_SETTINGS_MODULE", None)

    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "plan_grids", "pipelines", str(pipelines)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"index": 0, "gpipe_s": 11.0, "one_f_one_b_s": 11.0}
    assert [path.name for path in tmp_path.iterdir()] == ["pipelines.json"]


def test_estimates_are_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "estimates.json"
    path.write_text(json.dumps(ESTIMATES), encoding="utf-8")

    call_command("plan_grids", "estimates", str(path))

    plan = {"stages": 1, "data": 2, "tensor": 1}
    assert json.loads(capsys.readouterr().out) == {
        "model": "bert",
        "grid": "1_a100_1_n_2_d",
        "stages": 1,
        "chosen": plan,
        "chosen_step_s": 2.0,
        "best_step_s": 2.0,
        "explored": [plan],
        "plans": 2,
    }


def test_regrets_are_one_line_for_two_and_one_for_three_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "estimates.json"
    path.write_text(json.dumps(ESTIMATES), encoding="utf-8")

    call_command("plan_grids", "regrets", str(path))

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["profiled_shapes"] for line in lines] == [2, 3]


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '[{"forward": 3}]', "{}", "null"])
def test_a_file_of_other_content_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(CommandError, match=r"odd\.json"):
        call_command("plan_grids", "pipelines", str(path))


def test_an_unknown_kind_or_file_is_named(pipelines: Path) -> None:
    with pytest.raises(CommandError, match="weights"):
        call_command("plan_grids", "weights", str(pipelines))
    with pytest.raises(CommandError, match=r"nothing\.json"):
        call_command("plan_grids", "pipelines", "nothing.json")
