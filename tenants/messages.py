"""Why a change of tenants, members, accounts or tokens is refused, and the remedies."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import BASE, Table, Template, fixed

TENANTS: Final[Mapping[str, Template]] = {
    "choose-another-tenant-name": fixed("Choose another name."),
}

TABLE: Final = Table(BASE, TENANTS)
message = TABLE.message
sentence = TABLE.sentence
