"""The registry of importers."""

from scheduling.compat.formats import IMPORTERS, RULE_KINDS, format_named
from scheduling.core.jobspec.job_fields import COMPAT_FORMATS


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
