"""Pages of the documentation: its documents, and the glossary, whose terms have tooltips."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as mark

from portal.guides import guide_named, reading_order
from portal.web.viewing import PageRequest, page
from tenants.errors import NotFoundError

TERMS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "attempt": (
            mark("attempt"),
            mark(
                "One try to run a job on a set of devices. A retry or a "
                "preemption begins the next."
            ),
        ),
        "borrowed": (
            mark("borrowed"),
            mark("Devices that a job uses beyond its guarantee. Their owner can take them back."),
        ),
        "cell": (
            mark("cell"),
            mark("A part of the topology: a rack, a node, a socket or a device."),
        ),
        "cordon": (
            mark("cordon"),
            mark("An admin excludes a node from new work. Its running jobs continue."),
        ),
        "device": (mark("device"), mark("A GPU, or a declared CPU slot on a node without GPUs.")),
        "fragmentation": (
            mark("fragmentation"),
            mark("Devices are free, but not together in the shape that a job needs."),
        ),
        "gang": (
            mark("gang"),
            mark("All instances of a job. The scheduler starts all of them together, or none."),
        ),
        "goodput": (
            mark("goodput"),
            mark(
                "Useful samples per second: the throughput times the efficiency of the batch size."
            ),
        ),
        "guarantee": (
            mark("guarantee"),
            mark("The cells that a virtual cluster gets whenever its jobs need them."),
        ),
        "hold": (mark("hold"), mark("Excludes a waiting job from rounds until it is released.")),
        "lent": (
            mark("lent"),
            mark("Guaranteed devices that another virtual cluster uses at the moment."),
        ),
        "opportunistic": (
            mark("opportunistic"),
            mark("A job that uses idle devices. It is preempted when their owner needs them."),
        ),
        "policy": (
            mark("policy"),
            mark(
                "The algorithm that decides the order, sizes and types of "
                "jobs in a virtual cluster."
            ),
        ),
        "preemption": (
            mark("preemption"),
            mark(
                "The scheduler takes the devices of a job for another job. "
                "The job continues later."
            ),
        ),
        "queue position": (
            mark("queue position"),
            mark("The number of jobs of the virtual cluster that the newest round tried before."),
        ),
        "receipt": (
            mark("receipt"),
            mark("The record of a preemption: for whom, by which rule, what was saved and lost."),
        ),
        "round": (
            mark("round"),
            mark("One pass of the scheduler: it reads a snapshot, decides and commits."),
        ),
        "shadow policy": (
            mark("shadow policy"),
            mark("A policy that decides each round as well, and changes nothing."),
        ),
        "start estimate": (
            mark("start estimate"),
            mark("The range in which a waiting job starts in 8 of 10 simulated futures."),
        ),
        "sweep": (mark("sweep"), mark("A set of jobs, one for each combination of parameters.")),
        "tenant": (mark("tenant"), mark("A team or organisation that shares the cluster.")),
        "virtual cluster": (
            mark("virtual cluster"),
            mark(
                "A named share of the cluster with a guarantee, limits and a "
                "policy. It belongs to a tenant."
            ),
        ),
        "what-if": (
            mark("what-if"),
            mark("A simulation of past days under another policy, or with other devices."),
        ),
    }
)
"""Name and meaning by key; the keys are terms of the glossary in ``docs/style.md``."""


def meaning(key: str) -> str:
    """Return the translated meaning of a term.

    Raises:
        KeyError: the glossary does not have the term.
    """
    return _(TERMS[key][1])


@page
def glossary(asked: PageRequest) -> HttpResponseBase:
    """List all terms in the order of their translated names."""
    entries = [(key, _(name), _(text)) for key, (name, text) in TERMS.items()]
    return asked.render(
        "guides/glossary.html", {"entries": sorted(entries, key=lambda entry: entry[1].casefold())}
    )


@page
def documentation(asked: PageRequest) -> HttpResponseBase:
    """List the documents of this version."""
    return asked.render("guides/list.html", {"parts": reading_order()})


@page
def document(asked: PageRequest, name: str) -> HttpResponseBase:
    """Show a document as text.

    Raises:
        NotFoundError: there is no document of this name.
    """
    found = guide_named(name)
    if found is None:
        raise NotFoundError(_("This document does not exist."), field="name", value=name)
    return asked.render("guides/guide.html", {"guide": found})
