"""Recipes are valid job specifications, and name every elastic mode."""

import re
from pathlib import Path

import pytest

from scheduling.compat.documents import parse_document
from scheduling.core.jobspec import parse
from scheduling.core.jobspec.elastic import ElasticMode

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "recipes.md").read_text()
RECIPES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", RECIPES, ids=lambda text: text.splitlines()[0])
def test_a_recipe_is_a_valid_specification(text: str) -> None:
    spec = parse(parse_document(text))

    assert spec.virtual_cluster == "vision-a"


def test_there_is_a_recipe_for_each_usual_kind_of_work() -> None:
    assert len(RECIPES) == 6
    whole = "\n".join(RECIPES)
    for sign in ("torchrun --nnodes", "gang: false", "after:", "ports:", "class: opportunistic"):
        assert sign in whole


def test_the_table_names_every_elastic_mode() -> None:
    table = PAGE[PAGE.index("## Which elastic mode") :]

    assert [mode for mode in ElasticMode if f"`{mode.value}`" not in table] == []
