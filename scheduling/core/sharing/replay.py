"""Cases of device sharing from JSON documents, and their outcomes as JSON lines.

Only the given fields of a case are read, never its expected outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from scheduling.core.sharing.charges import DevicePart, charge
from scheduling.core.sharing.device import Serving
from scheduling.core.sharing.plants import Plant, PlantTurn, run_plant
from tessera.node.sharing import memory
from tessera.node.sharing.account import DelayAccount, Gate, observe

Case: TypeAlias = Mapping[str, Any]
Line: TypeAlias = dict[str, Any]
_TURN_FIELDS = frozenset({"at", "back", "kernel", "gap", "tail"})


class CaseError(ValueError):
    """A document of cases is not valid; the message names case, field and value."""


def replay(kind: str, document: object, seeds: Iterable[int] = ()) -> Iterator[Line]:
    """Yield the outcome lines of all cases of a document.

    Args:
        kind: one of ``KINDS``.
        document: the decoded file: ``{"version": 1, "cases": [...]}``.
        seeds: seeds of the runs of each plant.

    Raises:
        CaseError: the document or a case is not valid.
    """
    seeds = tuple(seeds)
    for case in cases_of(document):
        name = case.get("name")
        try:
            if kind == "plants":
                yield from _plant_lines(case, seeds)
            else:
                yield from _LINES[kind](case)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            text = f"field {error} is missing" if isinstance(error, KeyError) else str(error)
            raise CaseError(f"case {name!r}: {text}") from error


def cases_of(document: object) -> list[Case]:
    """Return the cases of a document.

    Raises:
        CaseError: it is not a document of cases of version 1.
    """
    if not isinstance(document, Mapping) or document.get("version") != 1:
        raise CaseError("the document is not a mapping with version 1")
    cases = document.get("cases")
    if not isinstance(cases, list) or not all(isinstance(case, Mapping) for case in cases):
        raise CaseError("cases: must be a list of mappings")
    return cases


def plant_of(case: Case) -> Plant:
    """Return the plant that a case describes.

    Raises:
        ValueError: a field is not valid.
        KeyError: a field is missing.
    """
    return Plant(
        kernels=_integer(case["kernels"], "kernels"),
        kernel_seconds=_number(case["kernel_seconds"], "kernel_seconds"),
        gap_seconds=_number(case["gap_seconds"], "gap_seconds"),
        guest_kernel_seconds=_number(case["guest_kernel_seconds"], "guest_kernel_seconds"),
        slowdown=_number(case["bound"], "bound"),
        seconds=_number(case["seconds"], "seconds"),
        serving=_serving(case.get("device", Serving.EQUAL_PARTS.value)),
        noise=_number(case.get("noise") or 0.0, "noise"),
        turn=_turn(case.get("turn") or {}),
    )


def _account_lines(case: Case) -> Iterator[Line]:
    slowdown = _positive(case["bound"], "bound")
    if slowdown >= 1:
        raise ValueError(f"bound: {slowdown} is not between 0 and 1")
    account, before = DelayAccount(), None
    for index, step in enumerate(case["steps"]):
        gate = Gate(step["gate"])
        if gate is Gate.SETTLING:
            raise ValueError(f"gate: {gate.value!r} is not open or closed")
        during = gate if before in (None, gate) else Gate.SETTLING
        before = gate
        account = observe(account, _positive(step["seconds"], "seconds"), during, slowdown)
        yield {
            "case": case["name"],
            "index": index,
            "baseline": account.baseline,
            "account": account.balance,
            "closed": account.overdrawn,
        }


def _memory_lines(case: Case) -> Iterator[Line]:
    device = _integer(case["device"], "device")
    peaks = [_integer(peak, "holder_peaks") for peak in case["holder_peaks"]]
    holder = memory.holder_bound(peaks, device)
    bound = memory.guest_bound(
        memory.room(device, _integer(case["contexts"], "contexts"), holder),
        _integer(case["guest_floor"], "guest_floor"),
        _integer(case["guest_bound_before"], "guest_bound_before"),
        rises=bool(case["holder_is_stable"]),
    )
    yield {
        "case": case["name"],
        "holder_bound": holder,
        "guest_bound": bound.bytes,
        "action": bound.action.value,
    }


def _charge_lines(case: Case) -> Iterator[Line]:
    charges = charge(map(_part, case["parts"]), _integer(case["leaf_memory"], "leaf_memory"))
    yield {"case": case["name"], "leaves": charges.leaves, "fits": charges.fits}


def _plant_lines(case: Case, seeds: tuple[int, ...]) -> Iterator[Line]:
    plant = plant_of(case)
    for seed in seeds:
        outcome = run_plant(plant, seed)
        yield {
            "case": case["name"],
            "seed": seed,
            "loss_after_5s": round(outcome.loss, 6),
            "worst_loss_of_10s_after_5s": round(outcome.worst_loss, 6),
            "guest_share_of_device": round(outcome.guest_share, 6),
            "seconds_until_in_bounds_after_turn": round(outcome.back_in_bounds, 6),
        }


_LINES: Final[Mapping[str, Callable[[Case], Iterator[Line]]]] = MappingProxyType(
    {"accounts": _account_lines, "memory": _memory_lines, "charges": _charge_lines}
)
KINDS: Final = (*_LINES, "plants")


def _part(body: Case) -> DevicePart:
    size, compute = body.get("memory"), body.get("compute")
    return DevicePart(
        vc=str(body["vc"]),
        memory=None if size is None else _integer(size, "memory"),
        compute=None if compute is None else _fraction(_number(compute, "compute")),
        guest=bool(body.get("guest", False)),
    )


def _fraction(value: float) -> Fraction:
    """Return the decimal number that was written: 0.7 + 0.2 + 0.1 is 1."""
    return Fraction(str(round(value, 9)))


def _turn(body: Case) -> PlantTurn:
    if unknown := set(body) - _TURN_FIELDS:
        raise ValueError(f"turn: unknown fields {', '.join(sorted(unknown))}")
    return PlantTurn(
        at=_optional(body.get("at"), "at"),
        back=_optional(body.get("back"), "back"),
        kernel_seconds=_optional(body.get("kernel"), "kernel"),
        gap_seconds=_optional(body.get("gap"), "gap"),
        tail=_number(body.get("tail") or 0.0, "tail"),
    )


def _serving(name: object) -> Serving:
    text = str(name).lower().replace("-", " ")
    return Serving.FIRST_COME if text.startswith(Serving.FIRST_COME.value) else Serving(text)


def _optional(value: object, field: str) -> float | None:
    return None if value is None else _number(value, field)


def _positive(value: object, field: str) -> float:
    number = _number(value, field)
    if number <= 0:
        raise ValueError(f"{field}: {value!r} is not positive")
    return number


def _number(value: object, field: str) -> float:
    # Sums and products of numbers below the limit stay finite.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e100:
        raise ValueError(f"{field}: {value!r} is not a number")
    return float(value)


def _integer(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{field}: {value!r} is not a whole number")
    if value < 0:
        raise ValueError(f"{field}: {value} is negative")
    return value
