"""The database keeps the rules, each under a name of its own."""

import pytest
from django.db import IntegrityError, connection, models, transaction

from tenants.models import (
    ApiToken,
    AuditEntry,
    FormToken,
    KnownSource,
    Membership,
    PasswordLink,
    SignInTally,
    Tenant,
    User,
)
from tests.factories.tenants import NOW, make_tenant, make_user

OURS = (
    *(ApiToken, AuditEntry, KnownSource, Membership, PasswordLink),
    *(SignInTally, Tenant, FormToken, User),
)


@pytest.mark.parametrize("model", OURS)
def test_every_constraint_and_index_is_named_after_its_table(model):
    for rule in [*model._meta.constraints, *model._meta.indexes]:
        assert rule.name.startswith(f"{model._meta.model_name}_"), rule.name


@pytest.mark.parametrize("model", OURS)
def test_every_choice_is_checked_by_the_database(model):
    checked = " ".join(
        str(rule.condition)
        for rule in model._meta.constraints
        if isinstance(rule, models.CheckConstraint)
    )

    for field in model._meta.concrete_fields:
        if field.choices:
            assert f"'{field.name}__in'" in checked, field.name


BREACHES = {
    "user_name_unique_in_any_case": lambda t, u: User.objects.create(username=u.username.upper()),
    "user_name_not_empty": lambda t, u: User.objects.create(username=""),
    "user_theme_known": lambda t, u: User.objects.filter(pk=u.pk).update(theme="pink"),
    "user_language_known": lambda t, u: User.objects.filter(pk=u.pk).update(language="tlh"),
    "user_time_zone_not_empty": lambda t, u: User.objects.filter(pk=u.pk).update(time_zone=""),
    "tenant_name_not_empty": lambda t, u: change(Tenant, t, name=""),
    "tenant_display_name_not_empty": lambda t, u: change(Tenant, t, display_name=""),
    "tenant_version_positive": lambda t, u: change(Tenant, t, version=0),
    "tenant_members_version_positive": lambda t, u: change(Tenant, t, members_version=0),
    "tenant_archived_after_created": lambda t, u: change(
        Tenant, t, created_at=NOW, archived_at=NOW.replace(year=2000)
    ),
    "membership_one_per_tenant_and_user": lambda t, u: [
        Membership.objects.create(tenant=t, user=u) for _ in range(2)
    ],
    "formtoken_one_per_word": lambda t, u: [
        FormToken.objects.create(user=u, word="w", digest="", at=NOW) for _ in range(2)
    ],
    "membership_role_known": lambda t, u: Membership.objects.create(tenant=t, user=u, role="king"),
    "membership_max_devices_positive": lambda t, u: Membership.objects.create(
        tenant=t, user=u, max_devices=0
    ),
    "membership_version_positive": lambda t, u: Membership.objects.create(
        tenant=t, user=u, version=0
    ),
    "apitoken_name_not_empty": lambda t, u: token(u, name=""),
    "apitoken_prefix_not_empty": lambda t, u: token(u, prefix=""),
    "apitoken_digest_not_empty": lambda t, u: token(u, digest=""),
    "apitoken_expires_after_created": lambda t, u: token(u, created_at=NOW, expires_at=NOW),
    "signintally_failures_not_negative": lambda t, u: SignInTally.objects.create(
        key="x", failures=-1
    ),
    "knownsource_one_per_key": lambda t, u: [
        KnownSource.objects.create(user=u, key="x", last_at=NOW) for _ in range(2)
    ],
    "passwordlink_one_per_user": lambda t, u: [link(u, digest=str(n)) for n in range(2)],
    "passwordlink_digest_not_empty": lambda t, u: link(u, digest=""),
    "passwordlink_expires_after_created": lambda t, u: link(u, expires_at=NOW),
    "auditentry_action_not_empty": lambda t, u: AuditEntry.objects.create(
        actor_name="x", object_type="x", action=""
    ),
    "auditentry_actor_name_not_empty": lambda t, u: AuditEntry.objects.create(
        actor_name="", object_type="x", action="x"
    ),
}


def change(model, row, **values):
    return model.objects.unscoped().filter(pk=row.pk).update(**values)


def token(user, **values):
    facts = {"name": "x", "prefix": "12345678", "digest": "x"} | values
    return ApiToken.objects.create(user=user, **facts)


def link(user, **values):
    facts = {"digest": "x", "created_at": NOW, "expires_at": NOW.replace(year=2100)} | values
    return PasswordLink.objects.create(user=user, **facts)


@pytest.mark.django_db
@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_is_refused_by_the_database_itself(name):
    tenant, user = make_tenant("vision"), make_user("alice")
    # SQLite names the columns of a unique rule, or its index, instead of the rule.
    is_plain = connection.vendor == "sqlite" and name.split("_")[1] == "one"
    sign = "UNIQUE|unique" if is_plain else name

    with pytest.raises(IntegrityError, match=sign), transaction.atomic():
        BREACHES[name](tenant, user)


def test_no_rule_is_left_untried():
    ours = {rule.name for model in OURS for rule in model._meta.constraints}

    assert ours == set(BREACHES)
