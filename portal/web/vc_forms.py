"""Forms of virtual clusters (shape, policy, caps, what-if), and their values for services."""

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Self

from django import forms
from django.http import QueryDict
from django.utils.translation import gettext as _

from portal.i18n import gettext_lazy
from portal.web.cluster_drawing import cells_in_words
from portal.web.policy_fields import add_policy_fields, policy_args_of, policy_names
from scheduling.clusters.models import VC_COLUMNS
from scheduling.clusters.queries.virtual_clusters import QuotaRow
from scheduling.clusters.services.vc_values import CAPS
from scheduling.core.sharing.hosts import MOST_GUESTS, Consent
from scheduling.core.simulation.planned_nodes import MOST_NODES
from scheduling.topology.current import TopologyNow
from tenants.errors import FieldError, InvalidError
from tessera.isolation import LEVELS

CELL_PREFIX: Final = "cells:"
MOST_LEVELS: Final = 500
_COUNT: Final = re.compile(r"[0-9]{1,6}")
PERIODS: Final = {
    "1": gettext_lazy("The last 24 hours"),
    "3": gettext_lazy("The last 3 days"),
    "7": gettext_lazy("The last 7 days"),
    "14": gettext_lazy("The last 14 days"),
    "": gettext_lazy("Custom range"),
}
DEVICES: Final = "devices-"
NODES: Final = "nodes-"
MOMENT: Final = "%Y-%m-%dT%H:%M"


class PolicyForm(forms.Form):
    """The policy of a virtual cluster, and its parameters."""

    version = forms.IntegerField(widget=forms.HiddenInput, required=False)
    policy = forms.ChoiceField(label=gettext_lazy("Policy"))

    def __init__(
        self, *args: Any, policy: str = "fifo", policy_args: Mapping[str, Any], **kwargs: Any
    ) -> None:
        """Add the parameters of ``policy`` as fields."""
        super().__init__(*args, **kwargs)
        self.chosen = policy
        choice = self.fields["policy"]
        assert isinstance(choice, forms.ChoiceField)  # noqa: S101 narrows the type only
        choice.choices = [(name, name) for name in policy_names()]
        add_policy_fields(self, policy, policy_args)

    @classmethod
    def of(cls, policy: str, policy_args: Mapping[str, Any], version: int | None) -> Self:
        """Fill the form from stored values."""
        initial = {"policy": policy, "version": version}
        return cls(policy=policy, policy_args=policy_args, initial=initial)

    @classmethod
    def sent(cls, sent: QueryDict) -> Self:
        """Parse the posted form, with the fields of the chosen policy."""
        return cls(sent, policy=sent.get("policy", ""), policy_args={})

    def args(self) -> dict[str, Any]:
        """Return the parameters in the valid form."""
        return policy_args_of(self, self.chosen)

    def values(self) -> dict[str, Any]:
        """Return the columns in the valid form."""
        return {"policy": self.cleaned_data["policy"], "policy_args": self.args()}


class WhatIfForm(PolicyForm):
    """Days, virtual cluster and changes of a what-if."""

    virtual_cluster = forms.ChoiceField(label=gettext_lazy("Virtual cluster"))
    period = forms.ChoiceField(
        label=gettext_lazy("Period"), choices=list(PERIODS.items()), required=False
    )
    since = forms.DateTimeField(label=gettext_lazy("From"), required=False, input_formats=[MOMENT])
    until = forms.DateTimeField(label=gettext_lazy("To"), required=False, input_formats=[MOMENT])
    size_aware = forms.BooleanField(
        label=gettext_lazy("Policies know the remaining work of each job"), required=False
    )

    def __init__(
        self, *args: Any, clusters: tuple[str, ...], types: tuple[str, ...], **kwargs: Any
    ) -> None:
        """Add ``clusters`` as choices, and a number of devices for each of ``types``."""
        super().__init__(*args, **kwargs)
        choice = self.fields["virtual_cluster"]
        assert isinstance(choice, forms.ChoiceField)  # noqa: S101 narrows the type only
        choice.choices = [(name, name) for name in clusters]
        for kind in types:
            self.fields[DEVICES + kind] = forms.IntegerField(
                label=_("%(kind)s devices") % {"kind": kind},
                required=False,
                min_value=0,
                max_value=100_000,
            )
        for name in ("since", "until"):
            self.fields[name].widget = forms.DateTimeInput(attrs={"type": "datetime-local"})

    def span(self, now: datetime) -> tuple[datetime, datetime]:
        """Return start and end of the valid form."""
        days = self.cleaned_data["period"]
        if days:
            return now - timedelta(days=int(days)), now
        since, until = self.cleaned_data["since"], self.cleaned_data["until"]
        return since or now - timedelta(days=1), until or now

    def guarantee(self) -> dict[str, int]:
        """Return the entered devices by type."""
        return {
            name.removeprefix(DEVICES): value
            for name, value in self.cleaned_data.items()
            if name.startswith(DEVICES) and value is not None
        }

    def device_fields(self) -> list[forms.BoundField]:
        """Return the fields of the guarantee, for the template."""
        return [self[name] for name in self.fields if name.startswith(DEVICES)]


class AdviceForm(forms.Form):
    """Days, virtual cluster and planned nodes of an advice on policies."""

    virtual_cluster = forms.ChoiceField(label=gettext_lazy("Virtual cluster"))
    period = forms.ChoiceField(
        label=gettext_lazy("Period"), choices=[item for item in PERIODS.items() if item[0]]
    )

    def __init__(
        self, *args: Any, clusters: tuple[str, ...], types: tuple[str, ...], **kwargs: Any
    ) -> None:
        """Add ``clusters`` as choices, and a change of the nodes of each of ``types``."""
        super().__init__(*args, **kwargs)
        choice = self.fields["virtual_cluster"]
        assert isinstance(choice, forms.ChoiceField)  # noqa: S101 narrows the type only
        choice.choices = [(name, name) for name in clusters]
        for kind in types:
            self.fields[NODES + kind] = forms.IntegerField(
                label=_("Change of %(kind)s nodes") % {"kind": kind},
                required=False,
                min_value=-MOST_NODES,
                max_value=MOST_NODES,
            )

    def span(self, now: datetime) -> tuple[datetime, datetime]:
        """Return start and end of the valid form."""
        return now - timedelta(days=int(self.cleaned_data["period"])), now

    def nodes(self) -> dict[str, int]:
        """Return the entered changes by type."""
        return {
            name.removeprefix(NODES): value
            for name, value in self.cleaned_data.items()
            if name.startswith(NODES) and value
        }

    def node_fields(self) -> list[forms.BoundField]:
        """Return the fields of the planned nodes, for the template."""
        return [self[name] for name in self.fields if name.startswith(NODES)]


class CapsForm(forms.Form):
    """The columns of a virtual cluster besides its policy, each a field of the same name.

    The templates list all fields: the caps first, then the rest.
    """

    version = forms.IntegerField(widget=forms.HiddenInput, required=False)
    max_devices_per_user = forms.IntegerField(
        label=gettext_lazy("Devices per user"),
        help_text=gettext_lazy("Leave empty for no limit."),
        required=False,
        min_value=1,
        max_value=1_000_000,
    )
    max_opportunistic_devices = forms.IntegerField(
        label=gettext_lazy("Borrowed devices"),
        help_text=gettext_lazy("Leave empty for no limit."),
        required=False,
        min_value=1,
        max_value=1_000_000,
    )
    least_isolation = forms.ChoiceField(
        label=gettext_lazy("Minimum isolation level"),
        help_text=gettext_lazy("Jobs run only on nodes of at least this isolation level."),
        required=False,
        choices=[(level, level) for level in LEVELS],
        widget=forms.Select(attrs={"translate": "no"}),
    )
    guests_default = forms.ChoiceField(
        label=gettext_lazy("Guests on its devices"),
        help_text=gettext_lazy("For jobs that do not set sharing.guests."),
        required=False,
        choices=[(consent.value, consent.value) for consent in Consent],
        widget=forms.Select(attrs={"translate": "no"}),
    )
    max_guests = forms.TypedChoiceField(
        label=gettext_lazy("Guests per device"),
        required=False,
        coerce=int,
        empty_value=None,
        choices=[(number, number) for number in range(MOST_GUESTS + 1)],
    )
    note = forms.CharField(
        label=gettext_lazy("Note"),
        required=False,
        max_length=500,
        widget=forms.Textarea(attrs={"rows": 2}),
    )

    def __init__(self, *args: Any, only_caps: bool = False, **kwargs: Any) -> None:
        """Remove all but the caps for a lead."""
        super().__init__(*args, **kwargs)
        for bound in self.rest() if only_caps else ():
            del self.fields[bound.name]

    def caps(self) -> list[forms.BoundField]:
        """Return the caps, which leads may change."""
        return [self[name] for name in CAPS]

    def rest(self) -> list[forms.BoundField]:
        """Return the other columns, which only cluster admins may change."""
        return [self[name] for name in VC_COLUMNS if name in self.fields and name not in CAPS]

    def values(self) -> dict[str, Any]:
        """Return the columns in the valid form; a missing choice is omitted."""
        return {
            name: self.cleaned_data[name]
            for name, field in self.fields.items()
            if name in VC_COLUMNS
            and not (
                isinstance(field, forms.ChoiceField) and self.cleaned_data[name] in ("", None)
            )
        }


class NewForm(CapsForm):
    """Name, tenant and columns of a new virtual cluster; its nodes may be of any level."""

    least_isolation = None  # type: ignore[assignment] # the way in which forms drop a field
    name = forms.CharField(label=gettext_lazy("Name"), max_length=63)
    tenant = forms.ChoiceField(label=gettext_lazy("Tenant"))

    def __init__(self, *args: Any, tenants: Iterable[str], **kwargs: Any) -> None:
        """Offer ``tenants``."""
        super().__init__(*args, **kwargs)
        choice = self.fields["tenant"]
        assert isinstance(choice, forms.ChoiceField)  # noqa: S101 narrows the type only
        choice.choices = [(name, name) for name in tenants]


def cell_name(chain: str, level: str) -> str:
    """Return the name of a stepper in the form; chains and levels may have any character."""
    return CELL_PREFIX + json.dumps([chain, level], separators=(",", ":"))


def counts_sent(sent: QueryDict) -> dict[tuple[str, str], int]:
    """Read cells by chain and cell type from the steppers of the form.

    Raises:
        InvalidError: an invalid number, or an unknown stepper.
    """
    found: dict[tuple[str, str], int] = {}
    faults: list[FieldError] = []
    for name in [name for name in sent if name.startswith(CELL_PREFIX)][:MOST_LEVELS]:
        key, text = _key_of(name), (sent.get(name) or "0").strip()
        if key is None or not _COUNT.fullmatch(text):
            faults.append(
                FieldError(
                    field="cells",
                    value=text[:40],
                    message=_("%(value)s is not a valid number of cells.")
                    % {"value": text[:40] or "–"},
                    remedy=_("Enter a whole number of at least 0."),
                )
            )
        else:
            found[key] = int(text)
    InvalidError.raise_if(faults)
    return found


def counts_in_words(topology: TopologyNow, cells: Iterable[tuple[str, str, int]]) -> str:
    """Format numbers of cells as ``4 A100 nodes, 2 RTX6000 sockets``."""
    parts = []
    for chain, level_type, count in cells:
        view = topology.chains.get(chain)
        level = view.level_of_type(level_type) if view else None
        kind = view.device_type if view else chain
        parts.append(cells_in_words(count, kind, level.level if level else level_type))
    return _(", ").join(parts)


def rows_in_words(rows: Iterable[QuotaRow]) -> str:
    """Describe the quotas of a shape; ``nothing`` for none."""
    parts = [cells_in_words(row.count, row.device_type, row.level) for row in rows if row.count]
    return _(", ").join(parts) or _("nothing")


def _key_of(name: str) -> tuple[str, str] | None:
    try:
        key = json.loads(name.removeprefix(CELL_PREFIX))
    except ValueError:
        return None
    if isinstance(key, list) and len(key) == 2 and all(isinstance(part, str) for part in key):
        return key[0], key[1]
    return None
