"""The panel beside the form: what would happen if the job were sent as it is."""

from dataclasses import dataclass

from portal.web.components import words
from portal.web.submit_check import Checked, Fault
from scheduling.core.jobspec import JobClass
from scheduling.selectors.wants import wants_in_words
from scheduling.services.drafts import Draft


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """What the panel says.

    Attributes:
        verdict: one or two words, beside ``icon`` in ``tone``.
        headline: the number or the sentence in large letters.
        says: why, in a sentence or two.
        code: the reason code, where there is one.
        facts: names and values.
        warnings: what will be different from what the document asks for.
        lost: what a translation has left out, with whether the original needs it.
        is_translated: the document is another system's.
        faults: what has to be mended first.
    """

    verdict: str
    tone: str
    icon: str
    headline: str
    says: str = ""
    code: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    lost: tuple[tuple[str, str, bool], ...] = ()
    is_translated: bool = False
    faults: tuple[Fault, ...] = ()


def panel_of(checked: Checked) -> Panel:
    """The panel for a checked text."""
    imported = checked.typed.imported
    lost = tuple(
        (entry.field, entry.message, entry.needed)
        for entry in (imported.unsupported if imported else ())
    )
    translated = imported.warnings if imported else ()
    if checked.draft is None:
        number = len(checked.faults)
        return Panel(
            verdict="Not yet",
            tone="bad",
            icon="failed",
            headline=f"{words.plural(number, 'thing', 'things')} to mend",
            says="The job cannot be sent as it is.",
            warnings=translated,
            lost=lost,
            is_translated=imported is not None,
            faults=checked.faults,
        )
    return Panel(
        verdict="Ready",
        tone="ok",
        icon="succeeded",
        headline=wants_in_words(checked.draft.demand.to_json()),
        says="The next round decides where it runs.",
        facts=_facts(checked.draft),
        warnings=(*translated, *checked.draft.warnings),
        lost=lost,
        is_translated=imported is not None,
    )


def _facts(draft: Draft) -> tuple[tuple[str, str], ...]:
    spec, demand = draft.spec, draft.demand
    is_free = draft.job_class is JobClass.OPPORTUNISTIC
    cluster = draft.virtual_cluster.name
    facts = [
        ("Members", words.plural(demand.instances, "member", "members")),
        ("Devices", f"{words.count(demand.devices)} in all"),
        ("Counts", "against no guarantee" if is_free else f"against {cluster}'s guarantee"),
        (
            "Preempted",
            "when somebody with a claim needs the devices"
            if is_free
            else f"only by a higher priority than {draft.priority} in {cluster}",
        ),
    ]
    if spec.max_duration:
        most = demand.devices * spec.max_duration / 3600
        facts.append(
            ("Ends", f"{words.duration(spec.max_duration)} after its start at the latest")
        )
        facts.append(("Costs", f"at most {words.gpu_hours(most)} device-hours"))
    if draft.after:
        facts.append(("After", ", ".join(str(number) for number in draft.after)))
    return tuple(facts)
