"""Volumes and storages of other systems become storages of the same names."""

import json
from typing import Any

import pytest

from scheduling.compat.dstack.job import import_dstack
from scheduling.compat.openpai.job import import_openpai
from scheduling.compat.result import Imported, ImportRefusedError
from scheduling.compat.skypilot.job import import_skypilot
from scheduling.core.jobspec import parse


def dstack(volumes: object) -> Imported:
    return import_dstack(
        json.dumps({"type": "task", "name": "t", "commands": ["true"], "volumes": volumes})
    )


def skypilot(**fields: object) -> Imported:
    return import_skypilot(json.dumps({"run": "true", **fields}))


def openpai(parameters: object) -> Imported:
    plugin = {"plugin": "teamwise_storage", "parameters": parameters}
    image = {"protocolVersion": 2, "name": "i", "type": "dockerimage", "uri": "python:3.12"}
    role = {
        "instances": 1,
        "dockerImage": "i",
        "resourcePerInstance": {"cpu": 1, "memoryMB": 1024, "gpu": 1},
        "commands": ["true"],
    }
    return import_openpai(
        json.dumps(
            {
                "protocolVersion": 2,
                "name": "t",
                "type": "job",
                "prerequisites": [image],
                "taskRoles": {"worker": role},
                "defaults": {"virtualCluster": "default"},
                "extras": {"com.microsoft.pai.runtimeplugin": [plugin]},
            }
        )
    )


def left_out(found: Imported) -> list[str]:
    return [part.field for part in found.unsupported if part.needed]


@pytest.mark.parametrize(
    ("found", "storage"),
    [
        (dstack(["my_Sets:/data/"]), [{"name": "my-sets", "mount": "/data"}]),
        (dstack([{"name": "sets", "path": "/data"}]), [{"name": "sets", "mount": "/data"}]),
        (skypilot(volumes={"/data": "sets"}), [{"name": "sets", "mount": "/data"}]),
        (
            skypilot(file_mounts={"/data": {"name": "Sets", "mode": "MOUNT"}}),
            [{"name": "sets", "mount": "/data"}],
        ),
        (
            openpai({"storageConfigNames": ["confignfs", "a.b"]}),
            [{"name": "confignfs"}, {"name": "a-b"}],
        ),
    ],
)
def test_named_volumes_become_storages(found: Imported, storage: list[dict[str, Any]]) -> None:
    assert found.spec["storage"] == storage
    assert left_out(found) == []
    names = [str(warning.message) for warning in found.warnings]
    assert any(f"storage {storage[0]['name']}" in text for text in names)
    parse({"virtual_cluster": "a", **found.spec})


@pytest.mark.parametrize(
    ("found", "field"),
    [
        (dstack(["/srv/data:/data"]), "volumes[0]"),
        (dstack([{"instance_path": "/srv", "path": "/data"}]), "volumes[0]"),
        (dstack(["sets:/etc"]), "volumes[0]"),
        (dstack(["sets:/data/../etc"]), "volumes[0]"),
        (dstack(["../..:/data"]), "volumes[0]"),
        (skypilot(file_mounts={"/data": "s3://bucket/x"}), "file_mounts./data"),
        (skypilot(file_mounts={"/data": {"source": "~/x"}}), "file_mounts./data"),
        (skypilot(volumes={"/usr/data": "sets"}), "volumes./usr/data"),
        (openpai({}), 'extras."com.microsoft.pai.runtimeplugin"[0]'),
        (openpai({"storageConfigNames": [7]}), None),
    ],
)
def test_paths_buckets_and_system_directories_are_left_out(
    found: Imported, field: str | None
) -> None:
    assert "storage" not in found.spec
    assert len(left_out(found)) == 1
    if field is not None and not field.startswith("extras"):
        assert left_out(found) == [field]


def test_nested_mount_points_are_refused_at_the_original_field() -> None:
    with pytest.raises(ImportRefusedError) as refused:
        dstack(["a:/data", "b:/data/b"])

    assert [error.field for error in refused.value.errors] == ["volumes"]
