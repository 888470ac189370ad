"""Priority classes: names for priorities, one of them the default."""

import pytest

from scheduling.clusters.models import PriorityClass
from scheduling.clusters.queries.import_rules import list_priority_classes
from scheduling.clusters.services.priority_classes import (
    create_priority_class,
    delete_priority_class,
    update_priority_class,
)
from tenants.errors import (
    ConflictError,
    DuplicateError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    StaleEditError,
)
from tenants.models import AuditEntry
from tests.factories.scheduling import ADMIN
from tests.factories.tenants import make_user, make_viewer

pytestmark = pytest.mark.django_db


def create(name="prod", value=100, **changes):
    return create_priority_class(viewer=ADMIN, name=name, value=value, **changes)


def default():
    return PriorityClass.objects.get(is_default=True).name


def test_the_first_class_is_the_default():
    create("prod", 100)
    create("test", 10)

    assert default() == "prod"
    assert [row.name for row in list_priority_classes(ADMIN)] == ["prod", "test"]


def test_a_new_default_takes_the_place_of_the_old_one():
    create("prod", 100)
    create("test", 10, is_default=True)
    assert default() == "test"

    update_priority_class(
        viewer=ADMIN, priority_class_id=PriorityClass.objects.get(name="prod").pk, is_default=True
    )

    assert default() == "prod"


def test_a_class_that_lost_the_default_is_another_one_than_was_read():
    prod = create("prod", 100)
    create("test", 10, is_default=True)

    with pytest.raises(StaleEditError):
        update_priority_class(
            viewer=ADMIN, priority_class_id=prod.pk, value=5, expected_version=prod.version
        )


def test_the_default_can_neither_go_nor_stop_being_it():
    row = create()

    with pytest.raises(ConflictError):
        delete_priority_class(viewer=ADMIN, priority_class_id=row.pk)
    with pytest.raises(ConflictError):
        update_priority_class(viewer=ADMIN, priority_class_id=row.pk, is_default=False)
    assert default() == "prod"


def test_another_class_is_changed_and_deleted_on_record():
    create()
    row = create("test", 10)

    update_priority_class(viewer=ADMIN, priority_class_id=row.pk, value=20, note="tries")
    delete_priority_class(viewer=ADMIN, priority_class_id=row.pk)

    actions = AuditEntry.objects.unscoped().filter(object_id=str(row.pk)).order_by("id")
    assert list(actions.values_list("action", flat=True)) == [
        "priority_class.create",
        "priority_class.update",
        "priority_class.delete",
    ]
    with pytest.raises(NotFoundError):
        delete_priority_class(viewer=ADMIN, priority_class_id=row.pk)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "Prod"),
        ("name", "a b"),
        ("name", "x" * 41),
        ("value", -2),
        ("value", 1001),
        ("value", True),
        ("value", "10"),
        ("note", "x" * 201),
        ("is_default", 1),
    ],
)
def test_a_wrong_value_is_refused_by_name(field, value):
    with pytest.raises(InvalidError) as caught:
        create(**{field: value})

    assert caught.value.field == field


def test_a_taken_name_is_refused():
    create()
    other = create("test", 10)

    with pytest.raises(
        DuplicateError, match="A priority class named prod already exists\\."
    ) as taken:
        create()
    assert [fault.field for fault in taken.value.errors] == ["name"]
    with pytest.raises(DuplicateError):
        update_priority_class(viewer=ADMIN, priority_class_id=other.pk, name="prod")


def test_only_cluster_admins_change_classes():
    row = create()
    make_user("carol")
    viewer = make_viewer("carol")

    for act in (
        lambda: create_priority_class(viewer=viewer, name="x", value=1),
        lambda: update_priority_class(viewer=viewer, priority_class_id=row.pk, value=1),
        lambda: delete_priority_class(viewer=viewer, priority_class_id=row.pk),
    ):
        with pytest.raises(ForbiddenError):
            act()
