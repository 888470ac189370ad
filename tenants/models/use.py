"""What people have used up to some instant, so that nobody has to sum up all of the past."""

from django.conf import settings
from django.db import models

from tenants.models.tenants import Tenant
from tenants.tenancy import TenantManager


class UsedSoFar(models.Model):
    """Seconds of one device that a person's jobs in a tenant held in all closed months.

    Made of the sums of days when a month is closed, and of nothing else. All rows are of the same
    instant, the end of the newest such month.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    is_gpu = models.BooleanField()
    seconds = models.FloatField()
    until = models.DateTimeField()

    objects = TenantManager("tenant_id")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "user", "is_gpu"], name="used_so_far_one_row_each"
            ),
            models.CheckConstraint(
                condition=models.Q(seconds__gte=0), name="used_so_far_is_not_negative"
            ),
        ]

    def __str__(self) -> str:
        return f"user {self.user_id} in tenant {self.tenant_id}: {self.seconds:.0f} s"
