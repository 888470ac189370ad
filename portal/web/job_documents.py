"""Documents of jobs as YAML text for people: samples, documents of older jobs, order of keys."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from portal.api.documents import read_document
from portal.i18n import gettext_lazy
from scheduling.compat.result import ImportRefusedError
from scheduling.core.jobspec import REDACTED, Completion, JobSpec, Retries, RoleSpec
from scheduling.core.lifecycle import FailureClass
from scheduling.jobs.queries.job_detail import JobDetail

WIDTH: Final = 100_000


class _Writer(yaml.SafeDumper):
    """Indents lists below their keys, and writes values instead of aliases."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:
        return True


def _write_list(writer: _Writer, value: list[Any]) -> yaml.Node:
    is_plain = all(not isinstance(inner, dict | list) for inner in value)
    return writer.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=is_plain)


def _write_text(writer: _Writer, text: str) -> yaml.Node:
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=_style_of(text))


_Writer.add_representer(list, _write_list)
_Writer.add_representer(str, _write_text)


def to_yaml(document: Mapping[str, Any], *, in_line: bool = False) -> str:
    """Return ``document`` as YAML; ``in_line`` writes ``{key: value}`` on one line."""
    text: str = yaml.dump(
        plain(document),
        Dumper=_Writer,
        default_flow_style=in_line,
        sort_keys=False,
        allow_unicode=True,
        width=WIDTH,
    )
    return text


def plain(value: Any) -> Any:
    """Return a mutable copy of dicts and lists."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _style_of(text: str) -> str | None:
    """Return the style: ``|`` for several lines if representable, else quotes if needed."""
    lines = text.split("\n")
    printable = all(character.isprintable() or character == "\n" for character in text)
    as_block = len(lines) > 1 and all(line == line.rstrip() for line in lines)
    if as_block and printable and lines[0] and not lines[0].startswith(" "):
        return "|"
    return '"' if not printable or len(lines) > 1 or not _reads_back(text) else None


def _reads_back(text: str) -> bool:
    """Return whether Tessera's parser reads the text correctly without quotes."""
    try:
        return isinstance(read_document(text), str)
    except ImportRefusedError:
        return True  # unreadable as a document, so the writer quotes it by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDocument:
    """A sample document; ``{vc}`` is replaced by the virtual cluster."""

    name: str
    summary: str
    text: str


SAMPLES: Final = (
    SampleDocument(
        name="hello",
        summary=gettext_lazy("1 device for a few seconds"),
        text="""\
# A command and its devices.
name: hello
virtual_cluster: {vc}
roles:
  worker:
    instances: 1
    devices: 1
    command: |
      for step in 1 2 3 4 5; do
        echo "step $step on $(hostname)"
        sleep 1
      done
""",
    ),
    SampleDocument(
        name="gang",
        summary=gettext_lazy("Two workers with rendezvous"),
        text="""\
# All members start together; rank 0 is at MASTER_ADDR:MASTER_PORT.
name: gang of two
virtual_cluster: {vc}
roles:
  worker:
    instances: 2
    devices: 4
    within: node
    command: |
      echo "rank $NODE_RANK of $WORLD_SIZE, the first is $MASTER_ADDR:$MASTER_PORT"
max_duration: 1h
retries: {user: 0, node: 3}
""",
    ),
    SampleDocument(
        name="torchrun",
        summary=gettext_lazy("PyTorch on 2 nodes, code from Git"),
        text="""\
name: train
virtual_cluster: {vc}
roles:
  worker:
    instances: 2
    devices: 4
    within: node
    command: |
      torchrun --nnodes "$WORLD_SIZE" --node-rank "$NODE_RANK" --nproc-per-node 4 \\
        --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" train.py
source:
  git: {url: "https://example.org/vision/train.git", ref: main}
max_duration: 12h
retries: {user: 1, node: 3}
""",
    ),
    SampleDocument(
        name="sweep",
        summary=gettext_lazy("One run of a sweep on idle devices"),
        text="""\
# Opportunistic: on what others leave idle; it goes back to the queue when they want it.
name: sweep 01
labels: {sweep: lr}
virtual_cluster: {vc}
class: opportunistic
roles:
  worker:
    devices: 1
    command: echo "learning rate $LR"
    env: {LR: "0.001"}
""",
    ),
)


def sample_text(name: str, virtual_cluster: str) -> str:
    """Return the sample of this name, or the first one."""
    found = next((sample for sample in SAMPLES if sample.name == name), SAMPLES[0])
    return found.text.replace("{vc}", virtual_cluster or "name-of-your-virtual-cluster")


def text_of_job(detail: JobDetail) -> tuple[str, tuple[str, ...]]:
    """Return the editable document of an older job: the submitted text if available.

    JSON of scripts and the CLI becomes YAML with the same values.

    Returns:
        The text, and the secrets (``role/NAME``) that it lacks.
    """
    lost = tuple(
        f"{role}/{name}"
        for role, spec in detail.spec["roles"].items()
        for name, value in (spec.get("secrets") or {}).items()
        if value == REDACTED
    )
    if detail.source_text and not lost:
        sent = json_object(detail.source_text)
        if sent is not None:
            return to_yaml(_ordered(sent)), ()
        if _is_mapping(detail.source_text):
            return detail.source_text, ()
    return to_yaml(tidy(detail.spec)), lost


def json_object(text: str) -> dict[str, Any] | None:
    """Parse ``text`` as a JSON object; None for any other text."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _ordered(sent: Mapping[str, Any]) -> dict[str, Any]:
    """Reorder a document: names first, roles last, without empty values."""
    first = {key: sent[key] for key in ("name", "virtual_cluster") if key in sent}
    last = {"roles": sent["roles"]} if "roles" in sent else {}
    rest = {key: value for key, value in sent.items() if value is not None}
    return {**first, **{key: rest[key] for key in rest if key not in {*first, *last}}, **last}


def tidy(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Remove defaults and placeholders of secrets from a canonical document."""
    roles = {name: _tidy_role(role) for name, role in spec["roles"].items()}
    defaults = JobSpec(name="", virtual_cluster="", roles={}).to_json()
    kept = {key: value for key, value in spec.items() if value != defaults.get(key)}
    first = {"name": spec["name"], "virtual_cluster": spec["virtual_cluster"]}
    retries = _differing(spec.get("retries") or {}, _default_retries())
    kept.pop("retries", None)
    found = {**first, **kept, "roles": roles}
    if retries:
        found["retries"] = retries
    return found


def _tidy_role(role: Mapping[str, Any]) -> dict[str, Any]:
    default = RoleSpec(command="")
    defaults = {
        "within": default.within.value,
        "completion": {
            "min_failed": Completion().min_failed,
            "min_succeeded": Completion().min_succeeded,
        },
    }
    kept = {key: value for key, value in role.items() if value != defaults.get(key)}
    kept.pop("secrets", None)
    kept.pop("image_secret", None)
    return kept


def _default_retries() -> dict[str, int]:
    return {failure.value: Retries().of(failure) for failure in FailureClass}


def _differing(found: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if value != defaults.get(key)}


def _is_mapping(text: str) -> bool:
    try:
        return isinstance(read_document(text), Mapping)
    except ImportRefusedError:
        return False
