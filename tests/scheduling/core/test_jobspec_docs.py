"""The reference of the job specification says what the code does."""

from pathlib import Path

import yaml

from scheduling.core.jobspec import SPEC_FIELDS, fields_table, json_schema, parse

ROOT = Path(__file__).resolve().parents[3]
DOCS = (ROOT / "docs" / "job-spec.md").read_text()


def test_the_table_in_the_docs_is_the_one_in_the_code():
    _, _, rest = DOCS.partition(
        "<!-- fields: written by scheduling.core.jobspec.fields_table -->\n"
    )
    table, _, _ = rest.partition("\n<!-- end of fields -->")

    assert table == fields_table()


def test_the_example_in_the_docs_is_a_job():
    _, _, rest = DOCS.partition("```yaml\n")
    example, _, _ = rest.partition("```")

    spec = parse(yaml.safe_load(example))

    assert spec.roles["worker"].instances == 2


def test_every_field_is_described_and_is_in_the_schema():
    schema = json_schema()

    for info in SPEC_FIELDS:
        assert info.help.endswith(".")
        assert info.default or info.required
        at = schema
        for step in info.path.split("."):
            at = at["additionalProperties"] if step == "<name>" else at["properties"].get(step, {})
        assert info.unsupported or at["description"] == info.help
