"""Whatever is sent, an importer translates it or refuses it with faults."""

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.compat.formats import TITLES, format_of_document, import_text
from scheduling.compat.result import ImportRefusedError
from scheduling.core.jobspec import parse
from tessera.slurm_options import ALL
from tests.strategies.jobspecs import JSON
from tests.support.imports import CONTEXT, HIVED, format_of, imported, inputs

KEYS = {
    "dstack": "type task name nodes commands env resources gpu cpu memory retry on_events fleets "
    "repos url registry_auth username password ssh_config hosts hostname user tags max_duration",
    "skypilot": "name resources accelerators cpus memory any_of ordered envs secrets run setup "
    "num_nodes workdir url image_id infra job_recovery labels hosts ip user use_spot",
    "openpai": "protocolVersion name taskRoles prerequisites defaults extras hivedScheduler",
}
WORDS = st.sampled_from(
    ["task", "fleet", "1", "A100:8", "2..4", "x", "", "1h", "24GB", "\x00", "\ud800", "-", "a=b"]
)
OPTION_VALUES = st.sampled_from(
    ["1", "0", "-1", "2-4", "gpu:2", "a:b", "1-10%2", "UNLIMITED", "now+1hour", "B:USR1@9", '"',
     "4G", "99999999999999999999", "\x00", "x" * 300, "afterok:1", "", "16:00", "2030-01-01"]
)  # fmt: skip


def attempt(name: str, text: str | bytes, content_type: str = "") -> None:
    """Import a text; what comes out is a job that would be accepted, or a list of nodes."""
    try:
        found = import_text(name, text, CONTEXT, content_type)
    except ImportRefusedError as refused:
        shown = [error.to_json() for error in refused.errors]
        json.dumps(shown or pytest.fail("a refusal without a fault")).encode()
        return
    for spec in found.specs:
        parse(spec)
    json.dumps([entry.to_json() for entry in found.unsupported]).encode()


@pytest.mark.parametrize("name", TITLES)
@given(text=st.text(max_size=200))
def test_no_text_ends_in_an_unhandled_error(name: str, text: str) -> None:
    attempt(name, text)


@pytest.mark.parametrize("name", TITLES)
@given(text=st.binary(max_size=100))
def test_no_bytes_end_in_an_unhandled_error(name: str, text: bytes) -> None:
    attempt(name, text)


@pytest.mark.parametrize("name", KEYS)
@settings(max_examples=12)
@given(data=st.data())
def test_no_values_of_known_keys_end_in_an_unhandled_error(name: str, data: st.DataObject) -> None:
    attempt_with_known_keys(name, data)


@pytest.mark.soak
@pytest.mark.parametrize("name", KEYS)
@settings(max_examples=1_000)
@given(data=st.data())
def test_none_of_very_many_values_ends_in_an_unhandled_error(
    name: str, data: st.DataObject
) -> None:
    attempt_with_known_keys(name, data)


def attempt_with_known_keys(name: str, data: st.DataObject) -> None:
    """Import a document that has keys of the format at odd places, with odd values."""
    keys = st.sampled_from(KEYS[name].split())
    leaves = WORDS | JSON
    values = st.recursive(
        leaves,
        lambda inner: st.dictionaries(keys, inner, max_size=4) | st.lists(inner, max_size=3),
        max_leaves=8,
    )
    kind = {"type": data.draw(st.sampled_from(["task", "fleet"]))} if name == "dstack" else {}
    document = {**kind, **data.draw(st.dictionaries(keys, values, max_size=6))}

    attempt(name, json.dumps(document), "application/json")


@given(
    options=st.lists(st.tuples(st.sampled_from(sorted(ALL)), OPTION_VALUES), max_size=6),
    shell=st.sampled_from(["#!/bin/bash", "#!/usr/bin/env python3", ""]),
)
def test_no_options_end_in_an_unhandled_error(options: list[tuple[str, str]], shell: str) -> None:
    lines = [f"#SBATCH --{name}={value}" for name, value in options]

    attempt("sbatch", "\n".join([shell, *lines, "srun true"]))


@pytest.mark.parametrize("name", TITLES)
@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x, x]\n" + "".join(f"k{i}: [*a, *a, *a, *a]\n" for i in range(3)),
        "&a [" + "*a, " * 9 + "*a]",
        "[" * 5000 + "]" * 5000,
        "{a: " * 5000 + "}" * 5000,
        "a: \x07\x1b[31m",
        "\ufeff#!/bin/sh\n#SBATCH -J \u202eevil\ntrue\n",
        "x" * 300_000,
        "!!python/object/apply:os.system [id]",
        "run: *nowhere",
    ],
    ids=lambda text: text[:12].encode("unicode_escape").decode(),
)
def test_hostile_documents_are_refused_or_translated(name: str, text: str) -> None:
    attempt(name, text)


def test_an_array_of_too_many_tasks_is_refused() -> None:
    for array in ("0-1000", "0-999999999", ",".join(map(str, range(1001)))):
        with pytest.raises(ImportRefusedError, match="1000 tasks"):
            import_text("sbatch", f"#!/bin/sh\n#SBATCH -a {array}\ntrue\n")


def test_a_billion_laughs_are_refused() -> None:
    levels = ["a0: &a0 lol"] + [
        f"a{i}: &a{i} [" + ", ".join([f"*a{i - 1}"] * 9) + "]" for i in range(1, 10)
    ]

    for name in ("dstack", "skypilot"):
        with pytest.raises(ImportRefusedError, match="too many values"):
            import_text(name, "\n".join(levels))


def test_secrets_show_in_no_fault_and_no_remark() -> None:
    found = import_text(
        "skypilot",
        "secrets: {KEY: hush-1}\nresources: {accelerators: A100:1}\nrun: ls\ntoken: hush-2\n",
    )
    with pytest.raises(ImportRefusedError) as refused:
        import_text("skypilot", "secrets: {KEY: [hush-1]}\nrun: ls\n")

    said = json.dumps([entry.to_json() for entry in found.unsupported]) + str(found.warnings)
    assert "hush" not in said + str(refused.value)
    assert found.holds_secrets


def test_all_kept_documents_are_small_enough_to_be_read_quickly() -> None:
    assert all(path.stat().st_size < 4096 for _, path in inputs())


@given(text=st.text(max_size=100))
def test_recognising_a_format_fails_only_by_refusal(text: str) -> None:
    try:
        format_of(text)
    except ImportRefusedError:
        return


@pytest.mark.parametrize("name", [*TITLES, HIVED])
@settings(max_examples=25)
@given(document=JSON)
def test_arbitrary_documents_are_refused_or_translated(name: str, document: object) -> None:
    for text in (json.dumps(document), yaml.safe_dump(document, allow_unicode=True)):
        try:
            imported(name, text)
        except ImportRefusedError as refused:
            shown = [error.to_json() for error in refused.errors]
            json.dumps(shown or pytest.fail("a refusal without a fault")).encode()


@given(document=JSON)
def test_recognising_a_document_never_fails(document: object) -> None:
    assert format_of_document(document) in {"", *TITLES}
    assert format_of_document({"type": document, "run": document}) in {"", *TITLES}
