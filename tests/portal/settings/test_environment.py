"""The environment: read once, and refused where it is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from portal.settings.backends import mail_settings
from portal.settings.environment import KNOWN, PROJECT_ROOT, read_environment
from portal.settings.environment_values import SettingsError


def test_nothing_needs_to_be_set(tmp_path: Path) -> None:
    settings = read_environment({"TESSERA_DATA_DIR": str(tmp_path)})

    assert settings.database_url == f"sqlite:///{tmp_path / 'db.sqlite3'}"
    assert settings.allowed_hosts == ("localhost", "127.0.0.1", "[::1]")
    assert (settings.round_seconds, settings.images) == (10.0, "required")
    assert (settings.https, settings.debug, settings.trusted_origins) == (False, False, ())


def test_unknown_names_are_refused_all_at_once_with_those_that_are_known() -> None:
    with pytest.raises(SettingsError) as refused:
        read_environment({"TESSERA_ROUND_SECOND": "5", "TESSERA_COLOUR": "red", "COLOUR": "red"})

    assert "TESSERA_COLOUR, TESSERA_ROUND_SECOND" in str(refused.value)
    assert all(name in str(refused.value) for name in KNOWN)


def test_names_of_the_command_line_of_tests_and_of_jobs_are_let_be(tmp_path: Path) -> None:
    others = {"TESSERA_URL": "x", "TESSERA_TOKEN": "x", "TESSERA_SHARED": "x"}
    of_jobs = {"TESSERA_JOB_ID": "7", "TESSERA_JOB_ANYTHING": ""}

    assert read_environment({"TESSERA_DATA_DIR": str(tmp_path), **others, **of_jobs})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TESSERA_ROUND_SECONDS", "soon"),
        ("TESSERA_ROUND_SECONDS", "0"),
        ("TESSERA_ROUND_SECONDS", "nan"),
        ("TESSERA_ROUND_SECONDS", "3601"),
        ("TESSERA_IMAGES", "maybe"),
        ("TESSERA_HOST_NETWORK", "always"),
        ("TESSERA_HTTPS", "yes"),
        ("TESSERA_DEBUG", "true"),
        ("TESSERA_LEASE_SECONDS", "1"),
        ("TESSERA_LOG_CAP_BYTES", "64M"),
        ("TESSERA_LOG_CAP_BYTES", "1024"),
        ("TESSERA_ARCHIVE_BYTES", "20 GB"),
        ("TESSERA_ARCHIVE_BYTES", "-1"),
        ("TESSERA_KEEP_ARCHIVES_DAYS", "ever"),
        ("TESSERA_KEEP_JOBS_DAYS", "ever"),
        ("TESSERA_KEEP_ROUND_BYTES", "-1"),
        ("TESSERA_PUBLIC_URL", "tessera.example.org"),
        ("TESSERA_HOOK_NETWORKS", "10.0.0.0/40"),
        ("TESSERA_TENANT_UIDS", "999-2000"),
        ("TESSERA_TENANT_UIDS", "70000-79999"),
        ("TESSERA_TENANT_UIDS", "60000-70000"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_its_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name) as refused:
        read_environment({name: value})

    assert repr(value) in str(refused.value)


@pytest.mark.parametrize(
    ("value", "reserved"),
    [("70999-70999", "70999"), ("70000-71000", "70999"), ("65534-65534", "65534")],
)
def test_a_range_with_a_reserved_user_id_is_refused_with_the_id(value: str, reserved: str) -> None:
    with pytest.raises(SettingsError, match=f"which contains {reserved} "):
        read_environment({"TESSERA_TENANT_UIDS": value})


def test_a_range_beside_the_reserved_user_ids_is_taken() -> None:
    found = read_environment({"TESSERA_TENANT_UIDS": "71000-4000000"})

    assert found.tenant_uids == (71_000, 4_000_000)
    assert read_environment({}).tenant_uids == (71_000, 79_999)


@pytest.mark.parametrize(
    "url", ["http://mail.example.org", "smtp://", "smtp://a:s3cret@host:x", "mail:s3cret"]
)
def test_a_mail_server_that_is_none_is_refused_without_repeating_its_password(url: str) -> None:
    with pytest.raises(SettingsError, match="TESSERA_EMAIL_URL") as refused:
        read_environment({"TESSERA_EMAIL_URL": url})

    assert "s3cret" not in str(refused.value)


def test_a_mail_server_is_reached_as_its_address_says() -> None:
    found = mail_settings("smtp+starttls://bob:a%40b@mail.example.org")

    assert (found["EMAIL_HOST"], found["EMAIL_PORT"]) == ("mail.example.org", 587)
    assert (found["EMAIL_HOST_USER"], found["EMAIL_HOST_PASSWORD"]) == ("bob", "a@b")
    assert (found["EMAIL_USE_TLS"], found["EMAIL_USE_SSL"]) == (True, False)


def test_how_long_things_are_kept_and_runs_go_on_alone_can_be_set() -> None:
    settings = read_environment(
        {
            "TESSERA_KEEP_JOBS_DAYS": "-1",
            "TESSERA_KEEP_LOGS_DAYS": "7.5",
            "TESSERA_KEEP_ROUND_BYTES": "0",
            "TESSERA_LEASE_SECONDS": "3600",
            "TESSERA_LOG_CAP_BYTES": "16777216",
            "TESSERA_ARCHIVE_BYTES": "1000",
        }
    )

    assert settings.keep_days == {"jobs": -1.0, "logs": 7.5}
    assert (settings.keep_round_bytes, settings.lease_seconds) == (0, 3600.0)
    assert (settings.log_cap_bytes, settings.archive_bytes) == (16 << 20, 1000)


def test_the_limits_of_copied_checkpoints_can_be_set() -> None:
    usual = read_environment({})
    chosen = read_environment(
        {"TESSERA_CHECKPOINT_BYTES": "1e12", "TESSERA_CHECKPOINT_SECONDS": "7200"}
    )

    assert (usual.checkpoint_bytes, usual.checkpoint_seconds) == (100 << 30, 1800.0)
    assert (chosen.checkpoint_bytes, chosen.checkpoint_seconds) == (10**12, 7200.0)
    with pytest.raises(SettingsError, match="TESSERA_CHECKPOINT_SECONDS"):
        read_environment({"TESSERA_CHECKPOINT_SECONDS": "0"})


def test_behind_https_forms_come_from_the_allowed_hosts_only() -> None:
    hosts = "tessera.example.org, .example.net,*"
    settings = read_environment({"TESSERA_HTTPS": "1", "TESSERA_ALLOWED_HOSTS": hosts})

    assert settings.trusted_origins == ("https://tessera.example.org", "https://*.example.net")


@pytest.mark.parametrize(("https", "secure"), [("0", "False"), ("1", "True")])
def test_behind_https_cookies_travel_by_nothing_else(
    tmp_path: Path, https: str, secure: str
) -> None:
    program = "import portal.settings as s; print(s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE)"
    own = {"TESSERA_HTTPS": https, "TESSERA_DATA_DIR": str(tmp_path), "PYTHONPATH": ".:src"}
    kept = {name: value for name, value in os.environ.items() if "TESSERA" not in name}

    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=PROJECT_ROOT,
        env=kept | own,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == [secure, secure]


def test_trusted_proxies_are_addresses_and_networks(tmp_path: Path) -> None:
    given = {"TESSERA_DATA_DIR": str(tmp_path), "TESSERA_TRUSTED_PROXIES": "127.0.0.1, 10.1.2.3/8"}

    assert read_environment(given).trusted_proxies == ("127.0.0.1/32", "10.0.0.0/8")
    with pytest.raises(SettingsError, match="TESSERA_TRUSTED_PROXIES"):
        read_environment(given | {"TESSERA_TRUSTED_PROXIES": "proxy.example.org"})


def test_browsers_are_told_to_use_https_where_people_do() -> None:
    said = subprocess.run(
        [
            sys.executable, "-c",
            "import portal.settings as s; print(s.SECURE_HSTS_SECONDS, s.SESSION_COOKIE_SECURE)",
        ],
        cwd=PROJECT_ROOT,
        env={**os.environ, "TESSERA_HTTPS": "1", "PYTHONPATH": f"{PROJECT_ROOT / 'src'}"},
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip

    assert said.stdout.split() == ["15552000", "True"]
