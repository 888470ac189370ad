"""Shapes of the sentences that importers say of the documents of other systems, by system."""

from typing import Final

from portal.i18n.of_importers.dstack import DSTACK
from portal.i18n.of_importers.openpai import OPENPAI
from portal.i18n.of_importers.sbatch import SBATCH
from portal.i18n.of_importers.shared import SHARED
from portal.i18n.of_importers.skypilot import SKYPILOT

IMPORTER_SENTENCES: Final = (*DSTACK, *OPENPAI, *SBATCH, *SHARED, *SKYPILOT)
