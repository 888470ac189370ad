"""The example unit files and the compose file run what ``tessera up`` runs."""

import os
import re
import shlex
import shutil
import subprocess
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from portal.celery import DEFAULT_QUEUE, NODES_QUEUE, ROUNDS_QUEUE
from portal.settings.backends import databases
from portal.settings.environment import KNOWN
from portal.supervisor.processes import DEFAULT_THREADS
from tests.conftest import PROJECT_ROOT
from workers.redis_address import sentinel_master

DEPLOY = PROJECT_ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def unit_commands() -> list[list[str]]:
    commands = []
    for path in UNITS:
        unit = ConfigParser(interpolation=None, strict=False)
        unit.read(path)
        commands.append(shlex.split(unit["Service"]["ExecStart"]))
    return commands


def compose_commands() -> list[list[str]]:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return [one["command"] for one in services.values() if "build" in one]


COMMANDS = [unit_commands, compose_commands]


def of_program(commands: list[list[str]], *words: str) -> list[list[str]]:
    return [one for one in commands if set(words) <= {Path(word).name for word in one}]


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


@pytest.mark.parametrize("commands", COMMANDS)
def test_every_queue_has_its_worker_and_rounds_run_one_by_one(commands) -> None:
    workers = of_program(commands(), "celery", "worker")

    by_queue = {option(worker, "-Q"): worker for worker in workers}
    assert len(workers) == 3
    assert set(by_queue) == {ROUNDS_QUEUE, NODES_QUEUE, DEFAULT_QUEUE}
    assert option(by_queue[ROUNDS_QUEUE], "-P") == "prefork"
    assert option(by_queue[ROUNDS_QUEUE], "-c") == "1"
    assert option(by_queue[NODES_QUEUE], "-P") == "threads"
    assert option(by_queue[DEFAULT_QUEUE], "-P") == "threads"
    assert option(by_queue[DEFAULT_QUEUE], "-c") == str(DEFAULT_THREADS)


@pytest.mark.parametrize("commands", COMMANDS)
def test_one_clock_and_one_web_server_are_named_as_they_are_in_the_code(commands) -> None:
    (beat,) = of_program(commands(), "celery", "beat")
    (web,) = of_program(commands(), "uvicorn")

    for place in (option(beat, "--scheduler"), web[1]):
        module, _, name = place.partition(":")
        assert hasattr(import_module(module), name)


def test_variables_of_the_compose_file_are_known_to_the_portal() -> None:
    environment = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["x-tessera"]["environment"]

    assert set(environment) <= KNOWN
    assert {"TESSERA_DATABASE_URL", "TESSERA_REDIS_URL", "TESSERA_SECRET_KEY"} <= set(environment)


def test_nothing_but_the_migration_starts_before_the_database_is_migrated() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    conditions = {
        name: service["depends_on"].get("migrate", {}).get("condition")
        for name, service in services.items()
        if "depends_on" in service
    }

    assert conditions.pop("migrate") is None
    assert set(conditions.values()) == {"service_completed_successfully"}
    assert len(conditions) == 5


def test_units_run_as_somebody_without_privileges_and_come_back() -> None:
    assert len(UNITS) == 5
    for path in UNITS:
        unit = ConfigParser(interpolation=None, strict=False)
        unit.read(path)
        service = unit["Service"]
        assert (service["User"], service["Restart"]) == ("tessera", "always"), path.name
        assert service["NoNewPrivileges"] == "yes", path.name


HARDENED = {
    "NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "UMask": "0077",
    "ProtectSystem": "strict", "ReadWritePaths": "/var/lib/tessera", "ProtectHome": "yes",
    "PrivateTmp": "yes", "PrivateDevices": "yes",
}  # fmt: skip


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_are_hardened(unit: Path) -> None:
    lines = dict(line.split("=", 1) for line in unit.read_text().splitlines() if "=" in line)

    assert HARDENED.items() <= lines.items()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_reads_the_units_without_complaint(unit: Path, tmp_path: Path) -> None:
    # The program and its user are on no test machine.
    text = re.sub("^(ExecStart)=.*", r"\1=/bin/true", unit.read_text(), flags=re.MULTILINE)
    copy = tmp_path / unit.name
    copy.write_text(re.sub("^(User)=.*", r"\1=games", text, flags=re.MULTILINE))

    ran = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", copy],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    about_it = [line for line in ran.stderr.splitlines() if unit.name in line]
    assert (ran.returncode, about_it) == (0, [])


def test_redis_of_the_compose_file_asks_for_a_password_that_is_in_no_argument() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    url = compose["x-tessera"]["environment"]["TESSERA_REDIS_URL"]
    script = compose["services"]["redis"]["command"][2]

    assert url.startswith("redis://:${REDIS_PASSWORD")
    assert "requirepass" in script
    assert script.endswith("exec redis-server /run/redis.conf")


HA = DEPLOY / "ha"


def test_two_control_hosts_run_what_one_host_runs() -> None:
    services = yaml.safe_load((HA / "compose.yaml").read_text())["services"]
    single = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]

    for process in ("web", "rounds", "nodes", "default", "beat"):
        for host in ("a", "b"):
            found = services[f"{process}-{host}"]
            assert found["command"] == single[process]["command"]
            assert found["hostname"] == f"control-{host}"
            assert found["volumes"] == [f"control-{host}:/data"]
    assert services["migrate"]["command"] == single["migrate"]["command"]


def test_variables_of_the_recipe_are_known_and_its_addresses_are_valid() -> None:
    environment = yaml.safe_load((HA / "compose.yaml").read_text())["x-tessera"]["environment"]
    lines = (HA / "environment.example").read_text().splitlines()
    example = dict(
        line.replace('"', "").split("=", 1) for line in lines if not line.startswith("#")
    )

    # A join bundle contains only known variables, so credentials in others would be missing.
    assert {*environment, *example} <= KNOWN
    credentials = {"TESSERA_STORAGE_ACCESS_KEY", "TESSERA_STORAGE_SECRET_KEY"}
    assert credentials <= set(environment) & set(example)
    for url in (environment["TESSERA_REDIS_URL"], example["TESSERA_REDIS_URL"]):
        master = sentinel_master(url.replace("${REDIS_PASSWORD:?set it in .env}", "p"))
        assert master is not None
        assert (len(master.sentinels), master.name) == (3, "mymaster")
    found = databases(example["TESSERA_DATABASE_URL"])["default"]
    assert (found["HOST"], found["PORT"]) == ("db-a,db-b", "5432,5432")
    assert "password" not in example["TESSERA_SEAL_SECRET"].lower()


def test_the_image_of_the_recipe_has_the_client_of_object_stores() -> None:
    tessera = yaml.safe_load((HA / "compose.yaml").read_text())["x-tessera"]
    name = tessera["build"].get("args", {}).get("REQUIREMENTS", "server")

    assert "${REQUIREMENTS}.txt" in (DEPLOY / "Dockerfile").read_text()
    assert tessera["environment"]["TESSERA_STORAGE"].startswith("s3://")
    assert "\nboto3==" in (PROJECT_ROOT / "requirements" / f"{name}.txt").read_text()


def test_the_load_balancer_asks_each_control_host_whether_it_is_ready() -> None:
    text = (HA / "haproxy.cfg").read_text()
    _, ready = text.split("\nbackend ready")

    assert "http-check send meth GET uri /readyz " in ready
    assert "http-check expect status 200" in ready
    assert re.findall(r"server (control-\w)", ready) == 2 * ["control-a", "control-b"]


def test_drop_ins_of_the_recipe_extend_units_that_exist() -> None:
    drop_ins = sorted((HA / "systemd").glob("*.service.d"))

    assert [path.name.removesuffix(".d") for path in drop_ins] == [unit.name for unit in UNITS]
    wanted = (HA / "systemd" / "tessera.target").read_text()
    assert all(unit.name in wanted for unit in UNITS)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units_with_the_drop_ins_of_the_recipe(tmp_path: Path) -> None:
    units = tmp_path / "units"
    shutil.copytree(HA / "systemd", units)
    programs = tmp_path / "opt"
    for unit in UNITS:
        (units / unit.name).write_text(unit.read_text().replace("/opt/tessera", str(programs)))
    for drop_in in units.glob("*.d/*.conf"):
        drop_in.write_text(drop_in.read_text().replace("/opt/tessera", str(programs)))
    for program in ("uvicorn", "celery"):
        path = programs / ".venv" / "bin" / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)

    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "tessera.target", *(one.name for one in UNITS)],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{units}:"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    said = [line for line in checked.stderr.splitlines() if "tessera" in line]
    assert said == []
    assert checked.returncode == 0


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="no docker-compose")
@pytest.mark.parametrize("folder", [DEPLOY, HA], ids=["one host", "two hosts"])
def test_compose_accepts_the_file_only_with_all_secrets(folder: Path) -> None:
    text = (folder / "compose.yaml").read_text()
    required = set(re.findall(r"\$\{(\w+):\?", text))
    assert required

    def checked(names: set[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["docker-compose", "--file", str(folder / "compose.yaml"), "config", "--quiet"],
            env={"PATH": os.environ["PATH"], **dict.fromkeys(names, "a" * 40)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    assert checked(required).returncode == 0, checked(required).stderr
    for name in required:
        assert name in checked(required - {name}).stderr
