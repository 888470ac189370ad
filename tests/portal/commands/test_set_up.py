"""What a new installation begins with."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from scheduling.clusters.models import PriorityClass
from scheduling.clusters.services.priority_classes import (
    create_priority_class,
    delete_priority_class,
    make_usual_classes,
)
from tenants.viewers import Viewer
from tests.factories.tenants import make_user

pytestmark = pytest.mark.django_db

VIEWER = Viewer.system("test")


@pytest.fixture(autouse=True)
def own_folder(settings: Any, tmp_path: Path) -> None:
    settings.TESSERA = replace(settings.TESSERA, data_dir=tmp_path)


def classes() -> dict[str, int]:
    return dict(PriorityClass.objects.values_list("name", "value"))


def test_a_new_installation_has_the_usual_priority_classes() -> None:
    call_command("set_up", verbosity=0)
    call_command("set_up", verbosity=0)

    assert classes() == {"crit": 120, "prod": 100, "test": 10, "oppo": -1}
    assert PriorityClass.objects.get(is_default=True).name == "test"


def test_a_class_that_an_admin_has_deleted_does_not_come_back() -> None:
    call_command("set_up", verbosity=0)
    make_user("root", is_cluster_admin=True)
    crit = PriorityClass.objects.get(name="crit")
    delete_priority_class(viewer=VIEWER, priority_class_id=crit.pk)

    call_command("set_up", verbosity=0)

    assert classes() == {"prod": 100, "test": 10, "oppo": -1}


def test_an_installation_that_has_done_without_gets_none() -> None:
    make_user("root", is_cluster_admin=True)

    call_command("set_up", verbosity=0)

    assert classes() == {}


def test_what_somebody_has_made_and_chosen_stays() -> None:
    create_priority_class(viewer=VIEWER, name="prod", value=7)

    make_usual_classes(viewer=VIEWER)

    assert classes() == {"crit": 120, "prod": 7, "test": 10, "oppo": -1}
    assert PriorityClass.objects.get(is_default=True).name == "prod"
