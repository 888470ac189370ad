"""Message templates of this package: the English text of each code.

``message`` builds a message, and rejects unknown codes and parameters. ``english`` and
``sentence`` are for stored rows, REST and logs; pages translate.
"""

from typing import Final

from scheduling.core.messages.clusters import CLUSTERS, CONDITIONS
from scheduling.core.messages.jobs import CHANGES, EVENTS, JOBS, WORDS
from scheduling.core.messages.lookups import LOOKUPS
from scheduling.core.messages.notices import NOTICES
from scheduling.core.messages.policies import PARAMETERS, POLICIES
from scheduling.core.messages.specs import SPECS
from scheduling.core.messages.submits import FITTING, SUBMITS
from tessera.messages import BASE, Table
from tessera.reason_texts import REASONS
from tessera.remedies import REMEDIES

TABLE: Final = Table(
    BASE,
    REASONS,
    REMEDIES,
    CHANGES,
    JOBS,
    EVENTS,
    POLICIES,
    SPECS,
    FITTING,
    NOTICES,
    PARAMETERS,
    WORDS,
    LOOKUPS,
    SUBMITS,
    CLUSTERS,
    CONDITIONS,
)
message = TABLE.message
english = TABLE.english
sentence = TABLE.sentence
