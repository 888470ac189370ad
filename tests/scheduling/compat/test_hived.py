"""HiveD configurations are checked as a whole, and every mistake is named."""

import copy
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.compat.hived.configuration import check_hived, import_hived
from scheduling.compat.result import ImportRefusedError
from scheduling.core.cells.hived import spec_from_hived
from tests.strategies.jobspecs import JSON

WHOLE = """
kubeApiServerAddress: http://10.10.10.10:8080
physicalCluster:
  skuTypes:
    K80: {gpu: 1, cpu: 4, memory: 8192Mi}
  cellTypes:
    K80-SWITCH: {childCellType: K80, childCellNumber: 2}
    K80-NODE: {childCellType: K80-SWITCH, childCellNumber: 2, isNodeLevel: true}
    2-K80-NODE: {childCellType: K80-NODE, childCellNumber: 2}
  physicalCells:
  - cellType: 2-K80-NODE
    cellChildren:
    - cellAddress: 10.0.0.1
      pinnedCellId: PIN
    - cellAddress: 10.0.0.2
      cellChildren:
      - cellChildren: [{cellAddress: 3}, {cellAddress: 1}]
      - null
  - cellType: K80-NODE
    cellAddress: 10.0.0.3
virtualClusters:
  vision:
    virtualCells:
    - {cellType: 2-K80-NODE.K80-NODE, cellNumber: 1}
    pinnedCells:
    - pinnedCellId: PIN
  language:
    virtualCells:
    - {cellType: K80-NODE.K80-SWITCH, cellNumber: 1}
"""


def config():
    return copy.deepcopy(import_hived(WHOLE).spec)


def changed(*path, to):
    document = config()
    at = document
    for step in path[:-1]:
        at = at[step]
    if to is None:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return document


def refusals(document):
    with pytest.raises(ImportRefusedError) as refused:
        check_hived(document)
    return refused.value.errors


def test_a_whole_configuration_is_taken_and_addresses_become_texts():
    imported = import_hived(WHOLE)

    node = imported.spec["physicalCluster"]["physicalCells"][0]["cellChildren"][1]
    assert node["cellChildren"][0]["cellChildren"] == [{"cellAddress": "3"}, {"cellAddress": "1"}]
    assert imported.spec["virtualClusters"]["vision"]["pinnedCells"] == [{"pinnedCellId": "PIN"}]
    assert {entry.field for entry in imported.unsupported} == {
        "kubeApiServerAddress",
        "physicalCluster.skuTypes",
    }
    assert imported.warnings == ()


def test_what_was_taken_is_taken_again_without_a_change():
    spec = import_hived(WHOLE).spec

    assert check_hived(spec).spec == spec


def test_the_cell_engine_takes_what_was_checked():
    spec = spec_from_hived(import_hived(WHOLE).spec)

    assert set(spec.virtual_clusters) == {"vision", "language"}


@pytest.mark.parametrize(
    "name",
    [
        "validation",
        "feature_demos",
        "limits",
        "reference_traces",
        "reference_crashes",
        "lab6_sample",
    ],
)
def test_the_reference_s_configurations_mean_the_same_after_the_check(shared_dir, name):
    cases = json.loads((shared_dir / "cases" / "cells" / f"{name}.json").read_text())
    configs = [case["config"] for case in cases["cases"] if case.get("config")]
    configs += list(cases.get("configs", {}).values())

    assert configs
    for each in configs:
        assert spec_from_hived(check_hived(each).spec) == spec_from_hived(each)


def test_old_names_are_read_with_a_warning():
    old = (
        WHOLE.replace("skuTypes", "gpuTypes")
        .replace("pinnedCellId", "reservationId")
        .replace("pinnedCells", "reservedCells")
    )

    imported = import_hived(old)

    assert imported.spec == import_hived(WHOLE).spec
    assert len(imported.warnings) == 3
    assert "physicalCluster.gpuTypes" in {entry.field for entry in imported.unsupported}
    assert all("was renamed to" in warning.message for warning in imported.warnings)


CELLS = ("physicalCluster", "physicalCells")
TYPES = ("physicalCluster", "cellTypes")
VISION = ("virtualClusters", "vision")
QUOTA = (*VISION, "virtualCells", 0)
CHILD = (*CELLS, 0, "cellChildren", 0)
AT_VISION = "virtualClusters.vision"
AT_CHILD = "physicalCluster.physicalCells[0].cellChildren[0]"

REFUSED = [
    (changed("physicalCluster", to=None), "physicalCluster", "nothing", "Give"),
    (changed("virtualClusters", to=None), "virtualClusters", "nothing", "Give"),
    (changed("physicalCluster", to=[]), "physicalCluster", "list", "keys"),
    (changed("physicalClusters", to={}), "physicalClusters", "object", "physicalCluster?"),
    (changed(*TYPES, to=None), "physicalCluster.cellTypes", "nothing", "Give"),
    (changed(*TYPES, to=3), "physicalCluster.cellTypes", "3", "keys"),
    (changed(*CELLS, to=None), "physicalCluster.physicalCells", "nothing", "one physical cell"),
    (changed(*CELLS, to=[]), "physicalCluster.physicalCells", "nothing", "one physical cell"),
    (changed(*CELLS, to={"a": 1}), "physicalCluster.physicalCells", "object", "list"),
    (
        changed(*TYPES, "K80-NODE", "childCellNumber", to=0),
        "physicalCluster.cellTypes.K80-NODE.childCellNumber",
        "0",
        "from 1",
    ),
    (
        changed(*TYPES, "K80-NODE", "childCellNumber", to="2"),
        "physicalCluster.cellTypes.K80-NODE.childCellNumber",
        "2",
        "whole number",
    ),
    (
        changed(*TYPES, "K80-NODE", "childCellType", to=None),
        "physicalCluster.cellTypes.K80-NODE.childCellType",
        "nothing",
        "Give",
    ),
    (
        changed(*TYPES, "K80-NODE", "isNodeLevel", to="yes"),
        "physicalCluster.cellTypes.K80-NODE.isNodeLevel",
        "yes",
        "true or false",
    ),
    (
        changed(*TYPES, "K80-NODE", "isNodelevel", to=True),
        "physicalCluster.cellTypes.K80-NODE.isNodelevel",
        "true",
        "isNodeLevel?",
    ),
    (
        changed(*TYPES, "K80-SWITCH", "childCellType", to="2-K80-NODE"),
        "physicalCluster.cellTypes.K80-SWITCH.childCellType",
        "2-K80-NODE",
        "end at a device",
    ),
    (
        changed(*TYPES, "K80-NODE", "childCellType", to="K80-NODE"),
        "physicalCluster.cellTypes.K80-NODE.childCellType",
        "K80-NODE",
        "end at a device",
    ),
    (
        changed(*TYPES, "2-K80-NODE", "isNodeLevel", to=True),
        "physicalCluster.cellTypes.2-K80-NODE.isNodeLevel",
        "true",
        "one node level",
    ),
    (
        changed(*TYPES, "K80-NODE", "isNodeLevel", to=False),
        "physicalCluster.physicalCells[0].cellType",
        "2-K80-NODE",
        "isNodeLevel: true",
    ),
    (
        changed(*TYPES, "a.b", to={"childCellType": "K80", "childCellNumber": 1}),
        "physicalCluster.cellTypes.a.b",
        "a.b",
        "dots",
    ),
    (
        changed(*TYPES, "2-K80-NODE", "childCellNumber", to=10_001),
        "physicalCluster.cellTypes.2-K80-NODE.childCellNumber",
        "10001",
        "10000",
    ),
    (
        changed(*CELLS, 0, "cellType", to="3-K80-NODE"),
        "physicalCluster.physicalCells[0].cellType",
        "3-K80-NODE",
        "Did you mean 2-K80-NODE?",
    ),
    (
        changed(*CELLS, 0, "cellType", to=None),
        "physicalCluster.physicalCells[0].cellType",
        "nothing",
        "Give",
    ),
    (
        changed(*CELLS, 0, "cellAdress", to="x"),
        "physicalCluster.physicalCells[0].cellAdress",
        "x",
        "cellAddress?",
    ),
    (
        changed(*CELLS, 0, "cellAddress", to=10.0),
        "physicalCluster.physicalCells[0].cellAddress",
        "10.0",
        "quotes",
    ),
    (
        changed(*CELLS, 0, "cellAddress", to="a/b"),
        "physicalCluster.physicalCells[0].cellAddress",
        "a/b",
        "one part",
    ),
    (
        changed(*CELLS, 1, "cellAddress", to="10.0.0.2"),
        "physicalCluster.physicalCells[1].cellAddress",
        "10.0.0.2",
        "its own name",
    ),
    (
        changed(*CELLS, 1, "pinnedCellId", to="PIN"),
        "physicalCluster.physicalCells[1].pinnedCellId",
        "PIN",
        "once",
    ),
    (
        changed(*CELLS, 0, "cellChildren", to=[{}, {}, {}]),
        "physicalCluster.physicalCells[0].cellChildren",
        "3",
        "at most 2",
    ),
    (
        changed(*CELLS, 1, "cellChildren", to=[{"cellAddress": "x"}, {"cellAddress": "x"}]),
        "physicalCluster.physicalCells[1].cellChildren[1].cellAddress",
        "x",
        "another",
    ),
    (
        changed(*CELLS, 1, "cellChildren", to=[{"cellChildren": [{"cellChildren": [{}]}]}]),
        "physicalCluster.physicalCells[1].cellChildren[0].cellChildren[0].cellChildren",
        "K80",
        "define the type",
    ),
    (changed(*VISION, to=[]), "virtualClusters.vision", "list", "keys"),
    (
        changed(*VISION, "virtualCell", to=[]),
        "virtualClusters.vision.virtualCell",
        "list",
        "virtualCells?",
    ),
    (
        changed(*QUOTA, "cellNumber", to=0),
        "virtualClusters.vision.virtualCells[0].cellNumber",
        "0",
        "from 1",
    ),
    (
        changed(*QUOTA, "cellNumber", to=None),
        "virtualClusters.vision.virtualCells[0].cellNumber",
        "nothing",
        "Give",
    ),
    (
        changed(*QUOTA, "cellNumbers", to=2),
        "virtualClusters.vision.virtualCells[0].cellNumbers",
        "2",
        "cellNumber?",
    ),
    (
        changed(*QUOTA, "cellType", to="K80-NODES"),
        "virtualClusters.vision.virtualCells[0].cellType",
        "K80-NODES",
        "K80-NODE",
    ),
    (
        changed(*QUOTA, "cellType", to="2-K80-NODE.V100"),
        "virtualClusters.vision.virtualCells[0].cellType",
        "V100",
        "K80-NODE, K80-SWITCH, K80",
    ),
    (
        changed(*QUOTA, "cellType", to="K80-NODE.2-K80-NODE"),
        "virtualClusters.vision.virtualCells[0].cellType",
        "2-K80-NODE",
        "Cell types inside it",
    ),
    (
        changed(*VISION, "pinnedCells", 0, "pinnedCellId", to="NONE"),
        "virtualClusters.vision.pinnedCells[0].pinnedCellId",
        "NONE",
        "physical cell",
    ),
    (
        changed("virtualClusters", "language", "pinnedCells", to=[{"pinnedCellId": "PIN"}]),
        "virtualClusters.language.pinnedCells[0].pinnedCellId",
        "PIN",
        "one virtual cluster",
    ),
    (changed("virtualClusters", " ", to={}), 'virtualClusters." "', " ", "name"),
    (changed(*VISION, "virtualCells", to={}), f"{AT_VISION}.virtualCells", "object", "list"),
    (changed(*VISION, "virtualCells", to=[7]), f"{AT_VISION}.virtualCells[0]", "7", "keys"),
    (changed(*VISION, "pinnedCells", to="PIN"), f"{AT_VISION}.pinnedCells", "PIN", "list"),
    (changed(*CHILD, "cellType", to="K80"), f"{AT_CHILD}.cellType", "K80", "K80-NODE"),
    (changed(*CHILD, "cellType", to=7), f"{AT_CHILD}.cellType", "7", "text"),
    (changed(*CHILD, "pinnedCellId", to=["PIN"]), f"{AT_CHILD}.pinnedCellId", "list", "text"),
]


def fields_of(value, path=""):
    """Every field of a document, with NAME for names that people give."""
    if isinstance(value, list):
        return set().union(*(fields_of(item, path) for item in value))
    if not isinstance(value, dict):
        return set()
    found = set()
    for key, inner in value.items():
        named = path.endswith(("cellTypes", "virtualClusters"))
        here = f"{path}.{'NAME' if named else key}".strip(".")
        found |= {here} | fields_of(inner, here)
    return found


def test_the_table_of_refusals_covers_every_field():
    refused = {
        re.sub(r"(cellTypes|virtualClusters)\.[^.\[]+", r"\1.NAME", re.sub(r"\[\d+\]", "", row[1]))
        for row in REFUSED
    }
    fields = {field for field in fields_of(config()) if field.count("cellChildren") < 2}

    assert "physicalCluster.physicalCells.cellChildren.pinnedCellId" in fields
    assert "virtualClusters.NAME.virtualCells.cellNumber" in fields
    assert not {f for f in fields - refused if f != "physicalCluster.cellTypes.NAME"}


@pytest.mark.parametrize(
    ("document", "field", "value", "remedy"),
    REFUSED,
    ids=[f"{row[1]}={row[2]}" for row in REFUSED],
)
def test_a_bad_configuration_is_refused_with_field_value_and_remedy(
    document, field, value, remedy
):
    errors = refusals(document)

    found = next((error for error in errors if error.field == field), None)
    assert found, [error.to_json() for error in errors]
    assert value in found.value
    assert remedy in found.remedy


def test_all_mistakes_come_at_once():
    document = changed(*QUOTA, "cellNumber", to=-1)
    document["physicalCluster"]["cellTypes"]["K80-NODE"]["childCellNumber"] = 0
    document["surprise"] = 1

    assert {error.field for error in refusals(document)} >= {
        "virtualClusters.vision.virtualCells[0].cellNumber",
        "physicalCluster.cellTypes.K80-NODE.childCellNumber",
        "surprise",
    }


def test_a_key_that_stands_twice_is_refused_with_its_line():
    with pytest.raises(ImportRefusedError) as refused:
        import_hived(WHOLE + "  vision:\n    virtualCells: []\n")

    assert "twice, at line" in refused.value.errors[0].message


def test_too_many_devices_are_refused_before_they_are_built():
    document = changed(*TYPES, "2-K80-NODE", "childCellNumber", to=10_000)
    document["physicalCluster"]["physicalCells"] = [{"cellType": "2-K80-NODE"}] * 6
    document["virtualClusters"] = {}

    (error,) = refusals(document)

    assert error.field == "physicalCluster.physicalCells[5].cellType"


def test_a_node_with_two_types_of_devices_may_stand_in_two_chains():
    document = config()
    types = document["physicalCluster"]["cellTypes"]
    types["T4-NODE"] = {"childCellType": "T4", "childCellNumber": 2, "isNodeLevel": True}
    document["physicalCluster"]["physicalCells"].append(
        {
            "cellType": "T4-NODE",
            "cellAddress": "10.0.0.3",
            "cellChildren": [{"cellAddress": "8"}, {"cellAddress": "9"}],
        }
    )

    assert check_hived(document).spec["physicalCluster"]["cellTypes"]["T4-NODE"]


def accepted(document):
    try:
        imported = check_hived(document)
    except ImportRefusedError as refused:
        return json.dumps([error.to_json() for error in refused.errors], ensure_ascii=False)
    return json.dumps(imported.spec, ensure_ascii=False)


@given(document=JSON)
def test_whatever_is_sent_it_is_taken_or_refused(document):
    accepted(document).encode()


@given(
    path=st.sampled_from([CELLS, TYPES, VISION, QUOTA, (*CELLS, 0), (*CELLS, 1)]),
    key=st.sampled_from(
        ["cellChildren", "cellAddress", "cellType", "cellNumber", "K80", "K80-NODE", "pinnedCells"]
    ),
    value=JSON,
)
def test_whatever_is_put_into_a_good_configuration_it_is_taken_or_refused(path, key, value):
    document = config()
    at = document
    for step in path:
        at = at[step]
    if isinstance(at, list):
        at.append({key: value})
    else:
        at[key] = value

    accepted(document).encode()


@given(text=st.text(max_size=300))
def test_no_text_crashes_the_importer(text):
    for whole in (text, WHOLE.replace("10.0.0.3", text), WHOLE.replace("PIN", text)):
        try:
            import_hived(whole)
        except ImportRefusedError as refused:
            str([error.to_json() for error in refused.errors]).encode()
