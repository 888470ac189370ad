"""What is scraped is what Prometheus reads: each series once, families whole, labels escaped."""

import re
from collections.abc import Iterator

import pytest
from django.utils import timezone

from portal.api.metrics import ExpositionSample, Family, exposition
from scheduling.clusters.models import Device
from tests.factories.metrics import fill_every_metric
from workers.models import NodeTelemetry

LINE = re.compile(r'([a-z_:][a-z0-9_:]*)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (\S+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\[\\"n])*)"')
ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}

Series = tuple[str, tuple[tuple[str, str], ...]]


def read(text: str) -> Iterator[tuple[str, str, Series, float]]:
    """Family, kind, series and value of each sample, strictly by the text format 0.0.4."""
    family, kind, seen = "", "", set()
    lines = text.split("\n")
    assert lines.pop() == ""
    for line in lines:
        if line.startswith("# HELP "):
            family = line.split(" ", 3)[2]
            assert family not in seen
            assert line.split(" ", 3)[3]
            seen.add(family)
        elif line.startswith("# TYPE "):
            assert line.split(" ")[2] == family
            kind = line.split(" ")[3]
        else:
            match = LINE.fullmatch(line)
            assert match, line
            labels = LABEL.findall(match[2] or "")
            pairs = tuple((name, re.sub(r"\\.", unescaped, value)) for name, value in labels)
            assert (
                match[1].removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
                == family
                or match[1] == family
            )
            yield family, kind, (match[1], pairs), float(match[3])


def unescaped(match: re.Match[str]) -> str:
    return ESCAPES[match[0]]


@pytest.mark.parametrize("person", ["root", "alice", "bob"])
def test_every_family_is_whole_and_no_series_comes_twice(api, world, person: str) -> None:
    fill_every_metric()

    samples = list(read(api(person).get("/metrics").content.decode()))

    series = [one for _, _, one, _ in samples]
    assert len(series) == len(set(series)) > 20
    for family, kind, (name, labels), value in samples:
        assert kind in ("gauge", "counter", "histogram")
        assert (kind == "counter") is family.endswith("_total")
        assert value >= 0
        if kind == "histogram" and name.endswith("_count"):
            bounds = [
                (dict(pairs)["le"], count)
                for _, _, (other, pairs), count in samples
                if other == f"{family}_bucket" and set(labels) < set(pairs)
            ]
            counts = [count for _, count in bounds]
            assert counts == sorted(counts)
            assert bounds[-1] == ("+Inf", value)


def test_labels_hold_whatever_people_have_called_things() -> None:
    odd = 'a"b\\c\nd}, {e="f"'

    (sample,) = read(
        exposition(
            [Family("tessera_x", "gauge", "Two\nlines.", (ExpositionSample(2, {"tenant": odd}),))]
        )
    )

    assert sample == ("tessera_x", "gauge", ("tessera_x", (("tenant", odd),)), 2.0)


def test_gpus_have_their_temperature_and_power(api, world) -> None:
    device = Device.objects.order_by("pk")[0]
    Device.objects.filter(pk=device.pk).update(uuid="GPU-b", is_gpu=True)
    NodeTelemetry.objects.create(
        node_id=device.node_id,
        at=timezone.now(),
        span_seconds=60,
        samples=1,
        temperature=[None] * device.index + [71.0],
    )

    found = {
        name: (dict(labels), value)
        for _, _, (name, labels), value in read(api("root").get("/metrics").content.decode())
    }

    labels, value = found["tessera_gpu_temperature_celsius"]
    assert (labels["uuid"], labels["device"], value) == ("GPU-b", str(device.index), 71.0)
    assert "tessera_gpu_power_watts" not in found
