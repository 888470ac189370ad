"""Errors that can be acted on."""

import pickle

import pytest

from tenants.errors import (
    ConflictError,
    DomainError,
    FieldError,
    InvalidError,
    NotFoundError,
    StaleEditError,
)


def test_one_fault_is_named_with_field_value_and_remedy():
    error = InvalidError("Too many.", field="devices", value=9, remedy="Use at most 8.")

    assert (error.field, error.value, error.remedy, str(error)) == (
        "devices",
        9,
        "Use at most 8.",
        "Too many.",
    )
    assert error.errors[0].as_dict() == {
        "field": "devices",
        "value": 9,
        "message": "Too many.",
        "remedy": "Use at most 8.",
    }


def test_an_error_repeats_little_of_what_was_given():
    long = "x" * 1_000_000

    error = FieldError(field=long, value=long, message=f"{long} is wrong.")

    assert all(len(str(text)) <= 1001 for text in error.as_dict().values())
    assert error.message.endswith("…")


def test_several_faults_travel_together():
    faults = [FieldError(field=name, message=f"{name} is wrong") for name in "ab"]

    with pytest.raises(InvalidError) as caught:
        InvalidError.raise_if(faults)
    InvalidError.raise_if([])

    assert caught.value.errors == tuple(faults)
    assert str(caught.value) == "a is wrong; b is wrong"


@pytest.mark.parametrize("kind", [DomainError, NotFoundError, ConflictError])
def test_an_error_without_words_has_its_title(kind):
    assert kind().message == kind.title
    assert kind().errors[0].message == kind.title


def test_an_error_survives_being_sent_between_processes():
    error = StaleEditError.of("tenant", 3)

    sent = pickle.loads(pickle.dumps(error))

    assert (type(sent), sent.errors, str(sent)) == (StaleEditError, error.errors, str(error))


def test_values_are_shown_in_json_and_cut():
    error = FieldError(field="x", value={"a": object}, message="m")
    long = FieldError(field="x", value=["y" * 1000] * 1000, message="m")

    assert isinstance(error.as_dict()["value"], str)
    assert len(str(long.as_dict())) < 20_000
