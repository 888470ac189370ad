"""How many live jobs one person and one tenant may have."""

from typing import ClassVar, Final

from django.conf import settings
from django.db import models
from django.db.models import Q

from tenants.models import Tenant

DEFAULT_PER_PERSON: Final = 10_000
DEFAULT_PER_TENANT: Final = 30_000
CLUSTER: Final = "cluster"


def tenant_key(tenant_id: int) -> str:
    """The ``JobLimit.key`` of a tenant."""
    return f"tenant:{tenant_id}"


def member_key(tenant_id: int, user_id: int | None) -> str:
    """The ``JobLimit.key`` of one person in a tenant."""
    return f"member:{tenant_id}:{user_id}"


class JobLimit(models.Model):
    """Limits of the cluster, of a tenant, or of one person in a tenant; None: as the wider one.

    ``key`` is ``CLUSTER``, a ``tenant_key`` or a ``member_key``.
    """

    key = models.CharField(max_length=48, unique=True)
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.CASCADE, related_name="+")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="+"
    )
    per_person = models.PositiveIntegerField(null=True)
    per_tenant = models.PositiveIntegerField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(per_person=None) | Q(per_person__gt=0),
                name="joblimit_per_person_is_positive",
            ),
            models.CheckConstraint(
                condition=Q(per_tenant=None) | Q(per_tenant__gt=0),
                name="joblimit_per_tenant_is_positive",
            ),
            models.CheckConstraint(
                condition=Q(user=None) | Q(per_tenant=None),
                name="joblimit_of_member_is_per_person",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.key}: {self.per_person} a person, {self.per_tenant} a tenant"
