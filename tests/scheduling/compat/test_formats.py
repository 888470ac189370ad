"""The registry of importers."""

import pytest

from scheduling.compat.context import Context, Named, cluster_and_priority
from scheduling.compat.formats import IMPORTERS, RULE_KINDS, format_named
from scheduling.compat.reading import ParseReport
from scheduling.core.jobspec.errors import DocumentPlace
from scheduling.core.jobspec.job_fields import COMPAT_FORMATS
from tessera.messages import Sentence


def test_each_convention_of_the_job_specification_belongs_to_one_importer() -> None:
    found = [each.compat_format for each in IMPORTERS.values() if each.compat_format]

    assert sorted(found) == sorted(COMPAT_FORMATS)


def test_a_format_is_found_by_its_name_and_its_aliases() -> None:
    names = [(each.name, alias) for each in IMPORTERS.values() for alias in each.aliases]

    assert ("sbatch", "slurm") in names
    assert all(format_named(alias) == name for name, alias in names)
    assert all(format_named(name) == name for name in IMPORTERS)
    assert format_named("pbs") == ""


def test_kinds_of_import_rules_are_short_enough_for_their_column() -> None:
    assert all(0 < len(kind) <= 20 for kind in RULE_KINDS)
    assert len(RULE_KINDS) == sum(len(each.rule_kinds) for each in IMPORTERS.values())


def test_labels_of_kinds_are_messages_of_the_importers() -> None:
    assert all(isinstance(label, Sentence) for label in RULE_KINDS.values())


@pytest.mark.parametrize("kind", RULE_KINDS)
def test_a_name_is_a_virtual_cluster_unless_its_kind_means_a_priority(kind: str) -> None:
    context = Context(clusters={"language-a": "language", "vision-a": "vision"})
    named = Named(kind, "vision-a", DocumentPlace(kind))

    chosen = cluster_and_priority(context, [named], ParseReport())

    assert chosen["virtual_cluster"] == ("language-a" if kind == "qos" else "vision-a")
