"""Django application of ``tenants``."""

from django.apps import AppConfig


class TenantsConfig(AppConfig):
    """The tenants application."""

    name = "tenants"
    verbose_name = "Tenants"
    default_auto_field = "django.db.models.BigAutoField"
