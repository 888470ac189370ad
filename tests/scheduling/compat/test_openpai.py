"""OpenPAI protocol v2 jobs become jobs of ours, and what does not is said."""

import copy
import json
import os
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.compat.openpai.job import import_openpai, translate_openpai
from scheduling.compat.result import ImportRefusedError
from scheduling.core.jobspec import Compat, parse
from tests.strategies.jobspecs import JSON

WHOLE = """
protocolVersion: 2
name: tensorflow_cifar10
type: job
version: 1.0
contributor: alice
description: image classification
prerequisites:
  - protocolVersion: 2
    name: tf_example
    type: dockerimage
    uri: team/tensorflow:1.15
  - {name: bench, type: script, uri: https://example.org/bench, version: "84820935"}
  - {name: cifar10, type: data, uri: [https://example.org/cifar.tar.gz]}
  - {name: model, type: output, uri: /mnt/models}
parameters: {model: resnet20, batchsize: 32, lr: 0.1}
secrets: {token: "s3 cr'et"}
jobRetryCount: 1
taskRoles:
  worker:
    instances: 2
    completion: {minFailedInstances: 1, minSucceededInstances: 2}
    taskRetryCount: 0
    dockerImage: tf_example
    data: cifar10
    script: bench
    output: model
    extraContainerOptions: {shmMB: 64}
    resourcePerInstance: {cpu: 4, memoryMB: 16384, gpu: 2, ports: {ssh: 1, http: 2}}
    commands:
      - cd script_<% $script.name %>_<% $script.version %>
      - |
        python train.py --lr <% $parameters.lr %> --model '<% $parameters.model %>' \\
          --token "<% $secrets.token %>" --out <% $output.uri %>
  ps_server:
    dockerImage: tf_example
    completion: {minFailedInstances: -1, minSucceededInstances: null}
    resourcePerInstance: {cpu: 2, memoryMB: 8192, gpu: 1}
    commands: [python ps.py]
deployments:
  - name: prod
    taskRoles:
      worker: {preCommands: ["wget <% $data.uri[0] %>"], postCommands: [echo done]}
  - name: unused
    taskRoles: {ps_server: {preCommands: [exit 1]}}
defaults: {virtualCluster: vision-a, deployment: prod}
extras:
  gangAllocation: true
  hivedScheduler:
    jobPriorityClass: prod
    taskRoles:
      worker: {skuType: K80, skuNum: 2, affinityGroupName: null}
"""


def small(**changes):
    document = {
        "protocolVersion": 2,
        "name": "small",
        "type": "job",
        "prerequisites": [{"name": "img", "type": "dockerimage", "uri": "team/img"}],
        "defaults": {"virtualCluster": "vision-a"},
        "taskRoles": {
            "worker": {
                "dockerImage": "img",
                "resourcePerInstance": {"cpu": 1, "memoryMB": 1024, "gpu": 1},
                "commands": ["echo hi"],
            }
        },
    }
    return {**document, **changes}


def small_role(**changes):
    document = small()
    document["taskRoles"]["worker"] |= changes
    return document


def small_hived(role=None, **changes):
    roles = {"worker": role} if role is not None else {}
    return small(extras={"hivedScheduler": {"taskRoles": roles, **changes}})


def refusals(document):
    with pytest.raises(ImportRefusedError) as refused:
        translate_openpai(document)
    return refused.value.errors


def fields_lacking(imported, *, needed):
    return {entry.field for entry in imported.unsupported if entry.needed is needed}


def test_a_whole_job_is_translated_field_by_field():
    spec = parse(import_openpai(WHOLE).spec)

    worker, ps = spec.roles["worker"], spec.roles["ps-server"]
    assert (spec.name, spec.note) == ("tensorflow_cifar10", "image classification")
    assert (spec.virtual_cluster, spec.priority) == ("vision-a", "prod")
    assert spec.retries.user == 1
    assert (worker.instances, worker.devices, worker.device_types) == (2, 2, ("K80",))
    assert (worker.cpus, worker.memory) == (4.0, 16_384 * 2**20)
    assert worker.image == "team/tensorflow:1.15"
    assert worker.ports == {"ssh": 1, "http": 2}
    assert (worker.completion.min_failed, worker.completion.min_succeeded) == (1, 2)
    assert (ps.completion.min_failed, ps.completion.min_succeeded) == (-1, -1)
    assert spec.compat == Compat(format="openpai", role_names={"ps-server": "ps_server"})


def test_commands_are_put_together_with_those_of_the_deployment():
    spec = import_openpai(WHOLE).spec

    prelude, _, script = spec["roles"]["worker"]["command"].partition("\n")
    assert "bash" in prelude
    assert script == (
        "wget https://example.org/cifar.tar.gz\n"
        "cd script_bench_84820935\n"
        "python train.py --lr 0.1 --model 'resnet20' \\\n"
        '  --token "$(cat "$TESSERA_JOB_SECRETS_DIR/token")" --out /mnt/models\n'
        "echo done"
    )
    assert spec["roles"]["ps-server"]["command"].endswith("\npython ps.py")


def test_secrets_go_to_the_roles_that_read_them_and_are_shown_nowhere():
    imported = import_openpai(WHOLE)

    assert imported.spec["roles"]["worker"]["secrets"] == {"token": "s3 cr'et"}
    assert "secrets" not in imported.spec["roles"]["ps-server"]
    assert "s3 cr" not in json.dumps(imported.job_to_json())


def test_what_has_no_counterpart_is_listed():
    imported = import_openpai(WHOLE)

    assert fields_lacking(imported, needed=False) == {
        "version",
        "contributor",
    }
    assert not fields_lacking(imported, needed=True)
    assert any("ps-server" in each.sentence for each in imported.warnings)


@pytest.mark.parametrize(
    ("name", "standing"),
    [
        ("crit", {"priority": "crit"}),
        ("prod", {"priority": "prod"}),
        ("test", {"priority": "test"}),
        ("oppo", {"class": "opportunistic"}),
        (None, {"priority": "test"}),
    ],
)
def test_the_priority_class_is_kept_and_oppo_means_opportunistic(name, standing):
    spec = translate_openpai(small_hived(jobPriorityClass=name)).spec

    assert {key: spec[key] for key in ("priority", "class") if key in spec} == standing


@pytest.mark.parametrize(
    ("role", "devices", "types"),
    [
        ({"skuNum": 4}, 4, None),
        ({"skuNumber": 4}, 4, None),
        ({"skuNum": 4, "skuNumber": 4}, 4, None),
        ({"skuType": "K80"}, 1, ["K80"]),
        ({"gpuType": "K80"}, 1, ["K80"]),
        ({"skuType": "K80", "pinnedCellId": None}, 1, ["K80"]),
        ({}, 1, None),
    ],
)
def test_devices_are_read_under_both_names_and_fall_back_to_the_gpus(role, devices, types):
    worker = translate_openpai(small_hived(role)).spec["roles"]["worker"]

    assert (worker["devices"], worker.get("device_types")) == (devices, types)


@pytest.mark.parametrize("key", ["pinnedCellId", "reservationId"])
def test_a_pinned_cell_is_carried_over(key):
    imported = translate_openpai(small_hived({key: "cell-1"}))

    assert imported.spec["roles"]["worker"]["pinned_cell"] == "cell-1"
    assert imported.unsupported == ()
    parse(imported.spec)


def test_a_role_without_gpus_gets_one_device_and_a_warning():
    document = small_role(resourcePerInstance={"cpu": 2, "memoryMB": 1024, "gpu": 0})

    imported = translate_openpai(document)

    assert imported.spec["roles"]["worker"]["devices"] == 1
    assert any("gpu" in each.sentence for each in imported.warnings)


def test_a_missing_virtual_cluster_is_default_as_in_openpai():
    imported = translate_openpai(small(defaults={}))

    assert imported.spec["virtual_cluster"] == "default"
    assert any("defaults.virtualCluster" in each.sentence for each in imported.warnings)


def test_roles_are_renamed_so_that_all_names_differ():
    role = small()["taskRoles"]["worker"]
    roles = {name: copy.deepcopy(role) for name in ("Worker", "worker", "1_x", "__")}

    spec = translate_openpai(small(taskRoles=roles)).spec

    names = spec["compat"]["role_names"]
    assert len(spec["roles"]) == 4
    assert {names.get(new, new) for new in spec["roles"]} == set(roles)
    parse(spec)


@pytest.mark.parametrize(
    ("document", "field", "needed"),
    [
        (
            small(extras={"jobStatusChangeNotification": {"dreamt": True}}),
            "extras.jobStatusChangeNotification.dreamt",
            True,
        ),
        (small(extras={"submitFrom": "portal"}), "extras.submitFrom", False),
        (small(extras={"fresh": 1}), "extras.fresh", True),
        (
            small(extras={"com.microsoft.pai.runtimeplugin": [{"plugin": "ssh"}]}),
            "extras.com.microsoft.pai.runtimeplugin[0]",
            False,
        ),
        (
            small(extras={"com.microsoft.pai.runtimeplugin": [{"plugin": "teamwise_storage"}]}),
            "extras.com.microsoft.pai.runtimeplugin[0]",
            True,
        ),
        (small(surprise=1), "surprise", True),
        (small_role(surprise=1), "taskRoles.worker.surprise", True),
        (small_role(prerequisites=["x"]), "taskRoles.worker.prerequisites", True),
        (
            small_role(extraContainerOptions={"infiniband": True}),
            "taskRoles.worker.extraContainerOptions.infiniband",
            False,
        ),
        (
            small_hived({"lazyPreemptionEnable": True}),
            "extras.hivedScheduler.taskRoles.worker.lazyPreemptionEnable",
            False,
        ),
    ],
)
def test_each_thing_without_a_counterpart_is_named(document, field, needed):
    imported = translate_openpai(document)

    assert fields_lacking(imported, needed=needed) == {field}
    assert bool(fields_lacking(imported, needed=True)) is needed


def prepared(kind, *commands):
    callbacks = [{"event": "taskStarts", "commands": [*commands]}]
    plugin = "com.microsoft.pai.runtimeplugin.cmd"
    return {"name": "setup", "type": kind, "plugin": plugin, "callbacks": callbacks}


@pytest.mark.parametrize(
    ("second", "runs"),
    [
        (prepared("data", "second"), "second\necho hi"),
        ({"name": "setup", "type": "data", "uri": ["x"]}, "echo hi"),
    ],
)
def test_of_prerequisites_of_one_name_the_last_counts_and_that_is_reported(second, runs):
    document = small_role(prerequisites=["setup"])
    document["prerequisites"] += [prepared("script", "first"), second]

    imported = translate_openpai(document)

    assert imported.spec["roles"]["worker"]["command"].endswith(f'exec bash "$0"\n{runs}')
    assert any("the last one is used" in each.sentence for each in imported.warnings)
    assert not fields_lacking(imported, needed=True)


@pytest.mark.parametrize(
    ("command", "added"),
    [
        ("run :$PAI_PORT_LIST_worker_0_http", {"worker": {"http": 1}}),
        ("run :${PAI_PORT_LIST_ps_server_0_ssh}", {"ps-server": {"ssh": 1}}),
        ("run :$PAI_PORT_LIST_ps_server_0_http $PAI_PORT_LIST_worker_0_ssh",
         {"ps-server": {"http": 1}, "worker": {"ssh": 1}}),
        ("p=PAI_PORT_LIST_${PAI_CURRENT_TASK_ROLE_NAME}_${i}_http",
         {"worker": {"http": 1}, "ps-server": {"http": 1}}),
        ("run :$PAI_PORT_LIST_worker_0_http2 $PAI_PORT_LIST_worker_0_sync", {}),
        ("run --http $PAI_HOST_IP_worker_0", {}),
        ("run $PAI_PORT_LIST_worker_0_sync --http $PAI_PORT_LIST_ps_server_0_http",
         {"ps-server": {"http": 1}}),
        ("run $PAI_PORT_LIST_worker_0_sync --kind my_http", {}),
        ('p = "PAI_PORT_LIST_" + role + "_0_http"',
         {"worker": {"http": 1}, "ps-server": {"http": 1}}),
    ],
)  # fmt: skip
def test_ports_that_openpai_makes_unasked_are_declared_where_commands_read_them(command, added):
    document = small_role(commands=[command])
    document["taskRoles"]["ps_server"] = {**document["taskRoles"]["worker"], "commands": ["ps"]}

    imported = translate_openpai(document)

    roles = imported.spec["roles"].items()
    assert {name: role["ports"] for name, role in roles if "ports" in role} == added
    told = sum("the role gets one port" in each.sentence for each in imported.warnings)
    assert told == sum(map(len, added.values()))


def test_of_two_roles_the_port_goes_to_the_one_that_is_spelled_out():
    document = small_role(commands=["run :$PAI_PORT_LIST_worker_a_0_http"])
    document["taskRoles"]["worker_a"] = {**document["taskRoles"]["worker"], "commands": ["a"]}

    roles = translate_openpai(document).spec["roles"]

    assert {name for name, role in roles.items() if "ports" in role} == {"worker-a"}


@pytest.mark.parametrize("number", [2, 0])
def test_ports_that_a_role_declares_stay_as_they_are(number):
    resources = {"cpu": 1, "memoryMB": 1024, "gpu": 1, "ports": {"http": number, "sync": 1}}
    document = small_role(
        commands=["run $PAI_PORT_LIST_worker_0_http"], resourcePerInstance=resources
    )

    imported = translate_openpai(document)

    assert imported.spec["roles"]["worker"]["ports"].get("http", 0) == number
    assert not any("the role gets one port" in each.sentence for each in imported.warnings)


def test_a_plugin_among_the_prerequisites_is_named():
    document = small()
    document["prerequisites"].append(
        {
            "type": "com.microsoft.pai.runtimeplugin.cmd",
            "name": "x",
            "callbacks": [{"event": "taskStarts", "commands": ["id"]}],
        }
    )

    assert fields_lacking(translate_openpai(document), needed=True) == {"prerequisites[1]"}


def test_credentials_of_a_registry_are_named_and_not_shown():
    document = small()
    document["prerequisites"][0]["auth"] = {"username": "alice", "password": "hunter2"}

    imported = translate_openpai(document)

    assert fields_lacking(imported, needed=True) == {"prerequisites[0].auth"}
    assert "hunter2" not in json.dumps(imported.job_to_json())


def test_a_retry_of_single_tasks_counts_only_where_they_start_one_by_one():
    with_gang = translate_openpai(small_role(taskRetryCount=3))
    without = translate_openpai(
        {**small_role(taskRetryCount=3), "jobRetryCount": 1, "extras": {"gangAllocation": False}}
    )

    assert any("taskRetryCount" in each.sentence for each in with_gang.warnings)
    assert "retries" not in with_gang.spec
    assert without.spec["retries"] == {"user": 3}
    assert not fields_lacking(with_gang, needed=True)
    assert not fields_lacking(without, needed=True)


def test_a_job_that_is_no_gang_stays_none_and_reports_what_that_means():
    imported = translate_openpai(small(extras={"gangAllocation": False}))

    assert parse(imported.spec).gang is False
    assert any("gangAllocation" in each.sentence for each in imported.warnings)


def test_roles_that_are_retried_differently_cannot_be_one_job_that_is_no_gang():
    document = small_role(taskRetryCount=3)
    document["taskRoles"]["other"] = {**document["taskRoles"]["worker"], "taskRetryCount": 4}
    document["extras"] = {"gangAllocation": False}

    with pytest.raises(ImportRefusedError) as refused:
        translate_openpai(document)

    assert [error.field for error in refused.value.errors] == ["taskRoles.worker.taskRetryCount"]


RESOURCES = {"cpu": 1, "memoryMB": 1024, "gpu": 1}

REFUSED = [
    (small(protocolVersion=1), "protocolVersion", "1"),
    (small(protocolVersion=None), "protocolVersion", "nothing"),
    (small(type="data"), "type", "data"),
    (small(name=None), "name", "nothing"),
    (small(name=17), "name", "17"),
    (small(name="n" * 64), "name", "nnn"),
    (small(description=3), "description", "3"),
    (small(jobRetryCount=-1), "jobRetryCount", "-1"),
    (small(jobRetryCount="1"), "jobRetryCount", "1"),
    (small(prerequisites={}), "prerequisites", "object"),
    (small(parameters=[]), "parameters", "list"),
    (small(secrets="x"), "secrets", ""),
    (small(taskRoles={}), "taskRoles", "nothing"),
    (small(taskRoles=[]), "taskRoles", "list"),
    (small(defaults={"virtualCluster": 3}), "defaults.virtualCluster", "3"),
    (small(defaults={"virtualCluster": "a b"}), "defaults.virtualCluster", "a b"),
    (small(defaults={"deployment": "x"}), "defaults.deployment", "x"),
    (small(deployments=[{"taskRoles": {}}]), "deployments[0].name", "nothing"),
    (
        small(deployments=[{"name": "a", "taskRoles": {}}, {"name": "a", "taskRoles": {}}]),
        "deployments[1].name",
        "a",
    ),
    (
        small(deployments=[{"name": "a", "taskRoles": {"x": {}}}]),
        "deployments[0].taskRoles.x",
        "x",
    ),
    (small(extras=3), "extras", "3"),
    (small(extras={"gangAllocation": "no"}), "extras.gangAllocation", "no"),
    (small_role(instances=0), "taskRoles.worker.instances", "0"),
    (small_role(instances="2"), "taskRoles.worker.instances", "2"),
    (small_role(dockerImage=None), "taskRoles.worker.dockerImage", "nothing"),
    (small_role(dockerImage="other"), "taskRoles.worker.dockerImage", "other"),
    (small_role(data="other"), "taskRoles.worker.data", "other"),
    (small_role(commands=[]), "taskRoles.worker.commands", "nothing"),
    (small_role(commands="id"), "taskRoles.worker.commands", "id"),
    (small_role(commands=[3]), "taskRoles.worker.commands[0]", "3"),
    (small_role(commands=["<% $parameters.x %>"]), "taskRoles.worker.commands", "$parameters.x"),
    (small_role(commands=["<% $secrets.x %>"]), "taskRoles.worker.commands", "$secrets.x"),
    (small_role(commands=["x" * 70_000]), "taskRoles.worker.commands", "xxx"),
    (small_role(resourcePerInstance=3), "taskRoles.worker.resourcePerInstance", "3"),
    (
        small_role(resourcePerInstance={**RESOURCES, "gpu": -1}),
        "taskRoles.worker.resourcePerInstance.gpu",
        "-1",
    ),
    (
        small_role(resourcePerInstance={**RESOURCES, "cpu": None}),
        "taskRoles.worker.resourcePerInstance.cpu",
        "nothing",
    ),
    (
        small_role(resourcePerInstance={**RESOURCES, "memoryMB": 1.5}),
        "taskRoles.worker.resourcePerInstance.memoryMB",
        "1.5",
    ),
    (
        small_role(resourcePerInstance={**RESOURCES, "ports": {"a-b": 1}}),
        "taskRoles.worker.resourcePerInstance.ports.a-b",
        "a-b",
    ),
    (
        small_role(completion={"minFailedInstances": 5}),
        "taskRoles.worker.completion.minFailedInstances",
        "5",
    ),
    (
        small_role(completion={"minSucceededInstances": 0}),
        "taskRoles.worker.completion.minSucceededInstances",
        "0",
    ),
    (small_role(taskRetryCount="x"), "taskRoles.worker.taskRetryCount", "x"),
    (
        small_hived(jobPriorityClass="urgent"),
        "extras.hivedScheduler.jobPriorityClass",
        "urgent",
    ),
    (
        small_hived({"skuType": "K80", "pinnedCellId": "x"}),
        "extras.hivedScheduler.taskRoles.worker.pinnedCellId",
        "x",
    ),
    (
        small_hived({"pinnedCellId": "x"}, jobPriorityClass="oppo"),
        "extras.hivedScheduler.taskRoles.worker.pinnedCellId",
        "x",
    ),
    (
        small_hived({"pinnedCellId": "x" * 64}),
        "extras.hivedScheduler.taskRoles.worker.pinnedCellId",
        "xxx",
    ),
    (
        small_hived({"skuNum": 1, "skuNumber": 2}),
        "extras.hivedScheduler.taskRoles.worker.skuNumber",
        "2",
    ),
    (small_hived({"skuNum": 0}), "extras.hivedScheduler.taskRoles.worker.skuNum", "0"),
    (
        small(extras={"hivedScheduler": {"taskRoles": {"other": {}}}}),
        "extras.hivedScheduler.taskRoles.other",
        "other",
    ),
    (
        small(prerequisites=[{"name": "img", "type": "magic", "uri": "x"}]),
        "prerequisites[0].type",
        "magic",
    ),
]


@pytest.mark.parametrize(
    ("document", "field", "value"), REFUSED, ids=[f"{row[1]}={row[2]}" for row in REFUSED]
)
def test_a_malformed_document_is_refused_with_field_value_and_remedy(document, field, value):
    errors = refusals(document)

    found = next((error for error in errors if error.field == field), None)
    assert found, [error.to_json() for error in errors]
    assert value in found.value
    assert found.remedy


def test_roles_of_one_affinity_group_must_agree():
    role = small()["taskRoles"]["worker"]
    document = small(
        taskRoles={"a": role, "b": copy.deepcopy(role)},
        extras={
            "hivedScheduler": {
                "taskRoles": {
                    "a": {"affinityGroupName": "g", "skuType": "K80"},
                    "b": {"affinityGroupName": "g", "skuType": "V100"},
                }
            }
        },
    )

    (error,) = refusals(document)

    assert error.field == "extras.hivedScheduler.taskRoles.b"


def test_all_mistakes_come_at_once_and_no_secret_is_among_them():
    errors = refusals(
        small(name=3, secrets={"a": ["hunter2"]}, jobRetryCount="x", description=[1])
    )

    assert {error.field for error in errors} == {
        "name",
        "secrets.a",
        "jobRetryCount",
        "description",
    }
    assert "hunter2" not in str([error.to_json() for error in errors])


@pytest.mark.parametrize(
    "text", ['it\'s "quoted" $(id) `id`', "日本語 👩‍💻", "a\n\n  b\tc", "\\n \\ %s {0}", "-x --y"]
)
def test_commands_are_carried_literally(text):
    imported = translate_openpai(small_role(commands=[text]))

    assert imported.spec["roles"]["worker"]["command"].partition("\n")[2] == text


def test_the_document_is_not_changed():
    document = small_hived({"gpuType": "K80"}, jobPriorityClass="prod")
    before = copy.deepcopy(document)

    translate_openpai(document)

    assert document == before


def accepted(document):
    try:
        imported = translate_openpai(document)
    except ImportRefusedError as refused:
        return json.dumps([error.to_json() for error in refused.errors], ensure_ascii=False)
    return json.dumps(imported.job_to_json(), ensure_ascii=False)


@given(document=JSON)
def test_whatever_is_sent_it_is_translated_or_refused(document):
    accepted(document).encode()


ROLE = ("taskRoles", "worker")
HIVED = ("extras", "hivedScheduler")
PATHS = st.sampled_from(
    [
        (),
        ROLE,
        (*ROLE, "resourcePerInstance"),
        ("taskRoles",),
        ("prerequisites", 0),
        ("extras",),
        ("defaults",),
        HIVED,
        (*HIVED, "taskRoles", "worker"),
    ]
)
NAMES = st.sampled_from(
    [
        "name", "type", "uri", "auth", "secrets", "parameters", "commands", "instances", "ports",
        "completion", "worker", "deployments", "taskRoles", "hivedScheduler", "skuNum", "skuType",
        "virtualCluster", "cpu", "gpu", "com.microsoft.pai.runtimeplugin", "extraContainerOptions",
    ]
)  # fmt: skip


@given(path=PATHS, name=NAMES | st.text(max_size=5), value=JSON)
def test_whatever_is_put_into_a_good_job_it_is_translated_or_refused(path, name, value):
    document = small_hived({})
    at = document
    for step in path:
        at = at[step]
    at[name] = value

    accepted(document).encode()


@given(text=st.text(max_size=300))
def test_no_text_crashes_the_importer(text):
    for whole in (text, WHOLE.replace("resnet20", text), WHOLE.replace("python ps.py", text)):
        try:
            import_openpai(whole)
        except ImportRefusedError as refused:
            str([error.to_json() for error in refused.errors]).encode()


def run_as_a_node_does(tmp_path, command, **env):
    script = tmp_path / "command.sh"
    script.write_text(command)
    done = subprocess.run(
        ["/bin/sh", str(script)], env={**os.environ, **env}, capture_output=True, check=False
    )
    return done.returncode, done.stdout.decode()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
def test_commands_run_with_bash_where_there_is_one(tmp_path):
    lines = ["words=(a 'b c')", 'echo "${words[1]}"', "exit 7"]
    imported = translate_openpai(small_role(commands=lines))

    ended = run_as_a_node_does(tmp_path, imported.spec["roles"]["worker"]["command"])

    assert ended == (7, "b c\n")


def test_commands_run_with_the_shell_there_is_where_bash_is_not(tmp_path):
    imported = translate_openpai(small_role(commands=["echo hi", "exit 7"]))

    ended = run_as_a_node_does(
        tmp_path, imported.spec["roles"]["worker"]["command"], PATH=str(tmp_path)
    )

    assert ended == (7, "hi\n")
