"""Properties of reading jobs: nothing else is raised, nothing is lost on the way."""

import json

import jsonschema
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.jobspec import (
    Demand,
    InvalidJobSpecError,
    demand,
    json_schema,
    parse,
    parse_stored,
)
from tests.strategies.jobspecs import JSON, KEYS, job_documents

SCHEMA = jsonschema.Draft202012Validator(json_schema())


def errors_of(document):
    try:
        parse(document)
    except InvalidJobSpecError as refused:
        return refused.errors
    return ()


@given(document=JSON)
def test_whatever_is_sent_only_one_error_is_raised(document):
    errors = errors_of(document)

    for error in errors:
        assert error.code
        assert error.remedy
        json.dumps(error.to_json(), ensure_ascii=False).encode()


@given(document=job_documents(), key=KEYS, value=JSON, role_key=KEYS, role_value=JSON)
def test_whatever_is_put_into_a_good_job_only_one_error_is_raised(
    document, key, value, role_key, role_value
):
    roles = {name: {**role, role_key: role_value} for name, role in document["roles"].items()}
    changed = {**document, "roles": roles, key: value}

    errors = errors_of(changed)

    json.dumps([error.to_json() for error in errors], ensure_ascii=False).encode()
    if not errors:
        json.dumps(parse(changed).to_json(), ensure_ascii=False).encode()


@given(document=job_documents())
def test_the_canonical_document_reads_back_as_the_same_job(document):
    spec = parse(document)

    canonical = spec.to_json(include_secrets=True)

    assert parse(json.loads(json.dumps(canonical))) == spec
    assert parse(canonical).to_json(include_secrets=True) == canonical
    assert parse_stored(spec.to_json()).with_secrets(spec.secrets()) == spec


@given(document=job_documents(), order=st.randoms())
def test_the_order_of_keys_means_nothing(document, order):
    roles = list(document["roles"].items())
    order.shuffle(roles)
    shuffled = {**document, "roles": dict(roles)}

    assert json.dumps(parse(shuffled).to_json()) == json.dumps(parse(document).to_json())


@given(document=job_documents())
def test_what_is_accepted_fits_the_published_schema(document):
    spec = parse(document)

    SCHEMA.validate(document)
    SCHEMA.validate(spec.to_json())


@given(document=job_documents())
def test_the_demand_counts_every_instance_and_reads_back_the_same(document):
    spec = parse(document)

    asked = demand(spec)

    assert asked.instances == sum(role.instances for role in spec.roles.values())
    assert asked.devices == sum(role.instances * role.devices for role in spec.roles.values())
    assert Demand.from_json(json.loads(json.dumps(asked.to_json()))) == asked
