"""References in OpenPAI commands, and what becomes of secrets in them."""

import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.compat.openpai.templates import referred_secrets, render
from scheduling.compat.shared import plain_text
from scheduling.core.jobspec.errors import RefusalError

VALUES = {
    "parameters": {"lr": 0.1, "n": 3, "on": True, "deep": {"x": ["a", "b"]}, "none": None},
    "data": {"name": "cifar", "uri": ["https://example.org/a"]},
}
READ = '$(cat "$TESSERA_JOB_SECRETS_DIR/T")'


def rendered(text):
    return render(text, VALUES, {"T": "T"})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("--lr <% $parameters.lr %>", "--lr 0.1"),
        ("<%$parameters.n%><% $parameters.on %>", "3true"),
        ("<% $parameters.deep.x[1] %> <% $data.uri[0] %>", "b https://example.org/a"),
        ("nothing $(here) '<' % >", "nothing $(here) '<' % >"),
        ("", ""),
    ],
)
def test_references_are_filled_in(text, wanted):
    assert rendered(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("run <% $secrets.T %>", f'run "{READ}"'),
        ("run --key=<% $secrets.T %>", f'run --key="{READ}"'),
        ('run "a <% $secrets.T %>"', f'run "a {READ}"'),
        ("run 'a <% $secrets.T %>'", f"run 'a '\"{READ}\"''"),
        ("run $'a\\'<% $secrets.T %>'", f"run $'a\\''\"{READ}\"$''"),
        ('a "$(b <% $secrets.T %>)"', f'a "$(b "{READ}")"'),
        ("a  # <% $secrets.T %>\nb", "a  # (secret T)\nb"),
        ("a#b <% $secrets.T %>", f'a#b "{READ}"'),
        ('a \\" <% $secrets.T %>', f'a \\" "{READ}"'),
        ("(cd x; run <% $secrets.T %>)", f'(cd x; run "{READ}")'),
    ],
)
def test_a_secret_becomes_a_read_of_its_file(text, wanted):
    assert rendered(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "<% $secrets.other %>",
        "<% $secrets.T.x %>",
        "<% $parameters.none %>",
        "<% $parameters.missing %>",
        "<% $parameters %>",
        "<% $parameters.deep %>",
        "<% parameters.n %>",
        "<%# $parameters.n %>",
        "<% $nobody.x %>",
        "<% $data.uri[7] %>",
        "cat <<EOF\n<% $secrets.T %>\nEOF",
        "`run <% $secrets.T %>`",
        "\\<% $secrets.T %>",
    ],
)
def test_a_reference_that_cannot_be_filled_in_is_refused(text):
    with pytest.raises(RefusalError) as refused:
        rendered(text)

    assert refused.value.remedy


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(1.0, "1"), (1e-5, "0.00001"), (1e22, "1e+22"), (0.0, "0"), (False, "false"), (7, "7")],
)
def test_numbers_are_written_as_openpai_writes_them(value, wanted):
    assert plain_text(value) == wanted


def test_the_secrets_of_a_command_are_found_once_each():
    text = "<% $secrets.b %> <%$secrets.a%> <% $secrets.b %> <% $parameters.c %>"

    assert referred_secrets(text) == ["b", "a"]


VALUE = st.text(
    st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=20
).filter(lambda text: not text.endswith("\n"))
CONTEXTS = st.sampled_from(
    [
        ("<% $secrets.T %>", "{}"),
        ('"<% $secrets.T %>"', "{}"),
        ("'<% $secrets.T %>'", "{}"),
        ("a''<% $secrets.T %>b", "a{}b"),
        ("\"$(printf %s 'x <% $secrets.T %>')\"", "x {}"),
        ("'it'\\''s <% $secrets.T %>'", "it's {}"),
    ]
)


@given(value=VALUE, context=CONTEXTS)
def test_a_real_shell_gets_the_value_as_one_word(tmp_path_factory, value, context):
    secrets = tmp_path_factory.mktemp("secrets")
    (secrets / "T").write_bytes(value.encode())
    text, wanted = context
    script = rendered(f"printf '%s|' {text} end")

    done = subprocess.run(
        ["/bin/sh", "-c", script],
        env={**os.environ, "TESSERA_JOB_SECRETS_DIR": str(secrets)},
        capture_output=True,
        check=True,
    )

    assert done.stdout.decode() == f"{wanted.format(value)}|end|"
