"""What a rank finds in its environment."""

import json
from dataclasses import replace
from typing import Any

import pytest

from scheduling.compat.slurm.job import import_sbatch
from scheduling.compat.slurm.script import FOUND
from scheduling.core.jobspec import parse
from tessera.hardware import AMD, ASCEND
from tessera.inventory import (
    BY_CDI_INDEX,
    BY_CDI_UUID,
    BY_DEVICE_REQUEST,
    BY_FILES,
    GPU_ACCESSES,
)
from workers.services.environment import AttemptGang, GangMember, job_environment


def gang(**changes: object) -> AttemptGang:
    document = {
        "name": "train",
        "virtual_cluster": "vision-a",
        "roles": {
            "ps": {"instances": 1, "devices": 1, "command": "true", "ports": {"grpc_in": 1}},
            "worker": {"instances": 2, "devices": 2, "command": "true"},
        },
        **changes,
    }
    members = (
        GangMember(
            role="ps",
            rank=0,
            node_rank=0,
            host="10.0.0.1",
            devices=(0,),
            ports={"grpc_in": [15001]},
        ),
        GangMember(role="worker", rank=0, node_rank=1, host="10.0.0.1", devices=(1, 2), ports={}),
        GangMember(role="worker", rank=1, node_rank=2, host="10.0.0.2", devices=(0, 1), ports={}),
    )
    return AttemptGang(
        spec=parse(document),
        job_id=7,
        job_name="train",
        attempt_number=2,
        tenant="vision",
        virtual_cluster="vision-a",
        user="alice",
        port=15000,
        members=members,
    )


def test_every_rank_knows_where_to_meet_and_who_it_is() -> None:
    whole = gang()

    found = job_environment(whole, whole.members[2], ["GPU-aa"])

    assert {name: found[name] for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")} == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "15000",
        "WORLD_SIZE": "3",
    }
    assert (found["RANK"], found["NODE_RANK"], found["NNODES"]) == ("2", "2", "3")
    assert (found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]) == ("0", "1")
    assert found["TESSERA_JOB_ROLE_SIZE"] == "2"
    assert found["TESSERA_JOB_HOSTS_WORKER"] == "10.0.0.1,10.0.0.2"
    assert found["TESSERA_JOB_HOSTS_PS"] == "10.0.0.1"
    assert found["TESSERA_JOB_ATTEMPT_NUMBER"] == "2"
    assert found["TESSERA_JOB_USER"] == "alice"


def test_ranks_count_the_processes_of_all_members() -> None:
    whole = gang()
    chief, *workers = whole.members
    whole = replace(whole, members=(chief, *(replace(one, processes=2) for one in workers)))

    found = [job_environment(whole, member, ["GPU-aa"]) for member in whole.members]

    assert [one["RANK"] for one in found] == ["0", "1", "3"]
    assert [one["LOCAL_WORLD_SIZE"] for one in found] == ["1", "2", "2"]
    assert {one["WORLD_SIZE"] for one in found} == {"5"}
    assert [(one["NODE_RANK"], one["NNODES"]) for one in found] == [
        (str(n), "3") for n in range(3)
    ]
    # As with torchrun, processes that share a node do not compete for its processors.
    assert [one.get("OMP_NUM_THREADS") for one in found] == [None, "1", "1"]


def test_an_instance_of_a_job_that_is_no_gang_knows_which_one_it_is() -> None:
    alone = gang(
        gang=False,
        part={"rank": 4, "size": 6},
        compat={"format": "openpai"},
        roles={"worker": {"command": "true"}},
    )
    alone = replace(alone, members=(replace(alone.members[1], node_rank=0),))

    found = job_environment(alone, alone.members[0])

    assert (found["TESSERA_JOB_PART"], found["TESSERA_JOB_PARTS"]) == ("4", "6")
    assert (found["RANK"], found["WORLD_SIZE"]) == ("0", "1")
    assert found["PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX"] == "4"
    assert found["PAI_TASK_ROLE_TASK_COUNT_worker"] == "6"
    assert found["PAI_HOST_IP_worker_4"] == "10.0.0.1"
    assert "TESSERA_JOB_PART" not in job_environment(gang(), gang().members[0])


def test_gpus_of_a_process_are_named_by_uuid_and_cpu_slots_are_none() -> None:
    whole = gang()

    on_gpus = job_environment(whole, whole.members[1], ["GPU-aa", "GPU-bb"])
    on_slots = job_environment(whole, whole.members[1])

    assert on_gpus["CUDA_VISIBLE_DEVICES"] == "GPU-aa,GPU-bb"
    assert on_gpus["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "OMP_NUM_THREADS" not in on_gpus
    assert on_slots["CUDA_VISIBLE_DEVICES"] == ""
    assert on_slots["OMP_NUM_THREADS"] == "1"
    assert on_slots["TESSERA_JOB_DEVICES"] == "1,2"
    assert on_slots["TESSERA_JOB_DEVICE_COUNT"] == "2"


def shown(**environment: object) -> dict[str, str]:
    """The variables by which the libraries of a vendor find the devices of a member."""
    whole = gang()
    found = job_environment(whole, whole.members[1], **environment)  # type: ignore[arg-type]
    return {name: value for name, value in found.items() if "VISIBLE_DEVICES" in name}


def test_gpus_of_amd_are_named_for_rocr_and_counted_within_them_for_hip() -> None:
    gpus = ["GPU-aa", "GPU-bb"]

    assert shown(gpus=gpus, vendor=AMD) == {
        "ROCR_VISIBLE_DEVICES": "GPU-aa,GPU-bb",
        "HIP_VISIBLE_DEVICES": "0,1",
    }
    assert shown(gpus=gpus, vendor=AMD, gpu_access=BY_FILES) == {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "AMD_VISIBLE_DEVICES": "none",
        "HIP_VISIBLE_DEVICES": "0,1",
    }
    assert shown(vendor=AMD) == {
        "CUDA_VISIBLE_DEVICES": "",
        "ROCR_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "",
    }


def test_npus_are_named_by_index_and_from_0_in_a_container() -> None:
    plain, inside = (
        shown(gpus=["4", "6"], vendor=ASCEND),
        shown(gpus=["4", "6"], vendor=ASCEND, gpu_access=BY_FILES),
    )

    assert plain == {"CUDA_VISIBLE_DEVICES": "", "ASCEND_RT_VISIBLE_DEVICES": "4,6"}
    assert inside == {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "CUDA_VISIBLE_DEVICES": "",
        "ASCEND_VISIBLE_DEVICES": "void",
        "ASCEND_RT_VISIBLE_DEVICES": "0,1",
    }
    assert shown(vendor=ASCEND)["ASCEND_RT_VISIBLE_DEVICES"] == ""


def test_ports_are_named_by_their_label() -> None:
    whole = gang()

    assert job_environment(whole, whole.members[0])["TESSERA_JOB_PORTS_GRPC_IN"] == "15001"


def test_what_the_user_sets_stands_before_our_defaults() -> None:
    whole = gang(
        roles={"worker": {"instances": 3, "command": "true", "env": {"OMP_NUM_THREADS": "4"}}}
    )
    member = GangMember(role="worker", rank=0, node_rank=0, host="h", devices=(0,), ports={})

    assert job_environment(whole, member)["OMP_NUM_THREADS"] == "4"


def test_what_is_so_stands_before_what_the_user_says() -> None:
    env = {"PAI_USER_NAME": "bob", "PAI_HOST_IP_worker_0": "10.9.9.9", "PAI_MINE": "kept"}
    whole = gang(
        compat={"format": "openpai"},
        roles={"worker": {"instances": 3, "command": "true", "env": env}},
    )
    member = GangMember(
        role="worker", rank=0, node_rank=0, host="10.0.0.1", devices=(0,), ports={}
    )

    found = job_environment(replace(whole, members=(member,)), member, ["GPU-aa"])

    assert found["PAI_USER_NAME"] == "alice"
    assert found["PAI_HOST_IP_worker_0"] == "10.0.0.1"
    assert found["PAI_MINE"] == "kept"


def test_nothing_of_openpai_is_there_unless_asked_for() -> None:
    whole = gang()

    found = job_environment(whole, whole.members[0])

    assert not [name for name in found if name.startswith("PAI_")]


def test_a_job_of_openpai_finds_its_documented_variables() -> None:
    whole = gang(compat={"format": "openpai", "role_names": {"ps": "Param-Server"}})

    found = job_environment(whole, whole.members[1])

    assert found["PAI_JOB_NAME"] == "alice~train"
    assert found["PAI_USER_NAME"] == "alice"
    assert found["PAI_TASK_ROLE_LIST"] == "Param-Server,worker"
    assert found["PAI_CURRENT_TASK_ROLE_NAME"] == "worker"
    assert found["PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX"] == "0"
    assert found["PAI_TASK_ROLE_TASK_COUNT_worker"] == "2"
    assert found["PAI_HOST_IP_worker_1"] == "10.0.0.2"
    assert found["PAI_PORT_LIST_Param_Server_0_grpc_in"] == "15001"
    assert (found["PAI_TASK_ROLE_COUNT"], found["PAI_VIRTUAL_CLUSTER"]) == ("2", "vision-a")
    assert found["PAI_MIN_FAILED_TASK_COUNT_worker"] == "1"
    assert found["PAI_MIN_SUCCEEDED_TASK_COUNT_Param_Server"] == "-1"
    assert found["PAI_RESOURCE_worker"].split(",")[0] == "2"


@pytest.mark.parametrize(
    ("gpu_access", "visible"),
    [(BY_DEVICE_REQUEST, "GPU-aa,GPU-bb"), (BY_CDI_UUID, "void"), (BY_CDI_INDEX, "void")],
)
def test_cuda_in_a_container_numbers_its_gpus_itself(gpu_access: str, visible: str) -> None:
    whole = gang()

    found = job_environment(whole, whole.members[1], ["GPU-aa", "GPU-bb"], gpu_access=gpu_access)

    assert "CUDA_VISIBLE_DEVICES" not in found
    assert found["NVIDIA_VISIBLE_DEVICES"] == visible


@pytest.mark.parametrize("gpu_access", GPU_ACCESSES)
def test_a_container_without_gpus_sees_none_whatever_its_image_sets(gpu_access: str) -> None:
    whole = gang()

    found = job_environment(whole, whole.members[1], gpu_access=gpu_access)

    assert found["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert found["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize("gpus", [("GPU-aa",), ()])
@pytest.mark.parametrize("gpu_access", ["", *GPU_ACCESSES])
def test_every_value_is_text(gpus: tuple[str, ...], gpu_access: str) -> None:
    whole = gang(compat={"format": "openpai"})

    found = job_environment(whole, whole.members[0], gpus, gpu_access=gpu_access)

    assert all(type(value) is str for value in found.values())


def test_an_elastic_job_is_told_its_size_and_its_bounds() -> None:
    whole = gang()
    elastic = replace(
        whole,
        spec=parse(
            {
                "name": "train",
                "virtual_cluster": "vision-a",
                "roles": {"worker": {"devices": 2, "command": "true"}},
                "elastic": {"max": 8},
            }
        ),
        members=whole.members[1:],
    )

    rigid = job_environment(whole, whole.members[0])
    found = job_environment(elastic, elastic.members[0])

    assert rigid["TESSERA_JOB_DEVICES_TOTAL"] == "5"
    assert "TESSERA_JOB_DEVICES_MAX" not in rigid
    assert {name: found[f"TESSERA_JOB_DEVICES_{name}"] for name in ("TOTAL", "MIN", "MAX")} == {
        "TOTAL": "4",
        "MIN": "2",
        "MAX": "8",
    }


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (
            {"mode": "logical_workers", "logical_workers": 8, "determinism": "D2", "epochs": 2},
            {"LOGICAL_WORKERS": "8", "DETERMINISM": "D2", "EPOCHS": "2"},
        ),
        (
            {"mode": "adaptive_batch", "initial_batch": 64, "max_batch": 256, "total_steps": 9},
            {
                "INITIAL_BATCH": "64",
                "MAX_BATCH": "256",
                "MAX_LOCAL_BATCH": "256",
                "TOTAL_STEPS": "9",
            },
        ),
    ],
)
def test_an_elastic_job_is_told_how_it_is_to_train(
    said: dict[str, Any], found: dict[str, str]
) -> None:
    whole = gang(elastic=said, roles={"worker": {"devices": 2, "command": "true"}})
    member = replace(whole.members[0], role="worker")

    alone = replace(whole, members=(member,), layout=[[3, 1]])
    told = job_environment(alone, member)

    assert told["TESSERA_JOB_LAYOUT"] == "[[3,1]]"
    known = found | {"ELASTIC_MODE": said["mode"], "DEVICES_MIN": "2", "DEVICES_MAX": "2"}
    assert {f"TESSERA_JOB_{name}": value for name, value in known.items()}.items() <= told.items()


def test_a_hybrid_job_finds_its_plan_and_its_declarations() -> None:
    whole = gang(
        parallel={"batch": 32, "micro_batches": 4},
        roles={"worker": {"devices": 2, "command": "true"}},
    )
    member = replace(whole.members[0], role="worker")
    plan = {"version": 1, "id": "0123456789ab"}

    told = job_environment(replace(whole, members=(member,), plan=plan), member)
    without = job_environment(replace(whole, members=(member,)), member)

    assert json.loads(told["TESSERA_JOB_PLAN"]) == plan
    assert json.loads(told["TESSERA_JOB_PARALLEL"])["batch"] == 32
    assert "TESSERA_JOB_PLAN" not in without


def of_format(name: str, env: dict[str, str]) -> tuple[AttemptGang, dict[str, str]]:
    """A gang of two nodes with the conventions of another system, and what its second rank has."""
    role = {"instances": 2, "devices": 2, "command": "true", "env": env}
    made = gang(roles={"worker": role}, compat={"format": name})
    made = replace(
        made,
        members=tuple(
            replace(member, node_rank=rank) for rank, member in enumerate(made.members[1:])
        ),
    )
    return made, job_environment(made, made.members[1], ["GPU-aa"])


def test_a_batch_script_finds_its_nodes_tasks_and_devices() -> None:
    env = {"SLURM_NTASKS_PER_NODE": "4", "SLURM_ARRAY_TASK_ID": "3"}

    _, found = of_format("slurm", env)

    assert {name: value for name, value in found.items() if name.startswith("SLURM")} == {
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_CLUSTER_NAME": "tessera",
        "SLURM_GPUS": "4",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_GPUS_PER_NODE": "2",
        "SLURM_JOBID": "7",
        "SLURM_JOB_ACCOUNT": "vision",
        "SLURM_JOB_GPUS": "0,1",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NAME": "train",
        "SLURM_JOB_NODELIST": "10.0.0.1,10.0.0.2",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_PARTITION": "vision-a",
        "SLURM_JOB_USER": "alice",
        "SLURM_LOCALID": "0",
        "SLURM_NNODES": "2",
        "SLURM_NODEID": "1",
        "SLURMD_NODENAME": "10.0.0.2",
        "SLURM_NODELIST": "10.0.0.1,10.0.0.2",
        "SLURM_NPROCS": "8",
        "SLURM_NTASKS": "8",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_PROCID": "4",
        "SLURM_RESTART_COUNT": "1",
        "SLURM_TASKS_PER_NODE": "4(x2)",
    }
    assert found["MASTER_ADDR"] == "10.0.0.1"


def test_a_batch_script_finds_what_its_import_says_that_it_finds() -> None:
    options = "-c 2 --ntasks-per-node=2 --gpus-per-task=1 --array=0-1"
    imported = import_sbatch(f"#!/bin/sh\n#SBATCH {options}\nsrun true\n")
    role = imported.spec["roles"]["worker"]

    _, found = of_format("slurm", {**role["env"], "SLURM_CPUS_ON_NODE": ""})

    by_script = {name for name in FOUND if f"{name}=" in role["command"]}
    assert found.keys() | by_script >= FOUND


def test_numbers_of_tasks_that_are_none_count_as_one_task_a_node() -> None:
    _, found = of_format("slurm", {"SLURM_NTASKS_PER_NODE": "many", "SLURM_NTASKS": "-3"})

    assert (found["SLURM_NTASKS"], found["SLURM_NTASKS_PER_NODE"]) == ("2", "1")


def test_a_dstack_task_and_a_skypilot_task_find_their_nodes() -> None:
    _, dstack = of_format("dstack", {})
    _, skypilot = of_format("skypilot", {})

    assert {name: value for name, value in dstack.items() if name.startswith("DSTACK")} == {
        "DSTACK_RUN_NAME": "train",
        "DSTACK_NODES_NUM": "2",
        "DSTACK_NODE_RANK": "1",
        "DSTACK_NODES_IPS": "10.0.0.1\n10.0.0.2",
        "DSTACK_MASTER_NODE_IP": "10.0.0.1",
        "DSTACK_GPUS_PER_NODE": "2",
        "DSTACK_GPUS_NUM": "4",
    }
    assert skypilot["SKYPILOT_NODE_IPS"] == "10.0.0.1\n10.0.0.2"
    assert skypilot["SKYPILOT_TASK_ID"] == "tessera-7_train"
    assert (skypilot["SKYPILOT_NODE_RANK"], skypilot["SKYPILOT_NUM_GPUS_PER_NODE"]) == ("1", "2")


def test_the_network_of_a_gang_is_named_for_communication_libraries() -> None:
    whole = gang(roles={"worker": {"command": "true", "env": {"GLOO_SOCKET_IFNAME": "mine"}}})
    member = replace(
        whole.members[1], interface="ib0", adapters=("mlx5_0", "mlx5_1"), node_host="gpu-01"
    )

    found = job_environment(whole, member)
    plain = job_environment(whole, whole.members[1])

    assert found["NCCL_SOCKET_IFNAME"] == "=ib0"
    assert found["TP_SOCKET_IFNAME"] == "ib0"
    assert found["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"
    assert found["GLOO_SOCKET_IFNAME"] == "mine"
    assert found["TESSERA_JOB_NODE_HOST"] == "gpu-01"
    assert not [name for name in plain if name.startswith(("NCCL_", "TP_"))]
