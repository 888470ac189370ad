"""HAProxy with the configuration of the recipe, on loopback in front of two ports."""

import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.conftest import PROJECT_ROOT
from tests.support.servers import stop
from tests.support.waiting import wait_until
from tests.support.whole_portal import free_port

CONFIGURATION: Final = PROJECT_ROOT / "deploy" / "ha" / "haproxy.cfg"
HOST: Final = "tessera.example.org"


@dataclass
class LoadBalancer:
    """A running HAProxy.

    Attributes:
        port: port with TLS.
        plain_port: port that redirects to TLS.
        host: name of the portal in requests.
    """

    port: int
    plain_port: int
    host: str = HOST

    def get(self, path: str, *, seconds: float = 5.0) -> tuple[int, bytes]:
        """Return status and body of a page; status 0 without a response."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        line = HTTPSConnection("127.0.0.1", self.port, timeout=seconds, context=context)
        try:
            line.request("GET", path, headers={"Host": self.host})
            answer: HTTPResponse = line.getresponse()
            return answer.status, answer.read()
        except (OSError, HTTPException):
            return 0, b""
        finally:
            line.close()


def has_haproxy() -> bool:
    """Return whether HAProxy is installed here."""
    return shutil.which("haproxy") is not None


def configured(folder: Path, controls: Sequence[int], ports: tuple[int, int]) -> Path:
    """Write the configuration of the recipe with ports on loopback.

    Args:
        folder: directory of the file and its certificate.
        controls: ports of the control hosts.
        ports: the ports of the frontend, with TLS and without.
    """
    certificate = folder / "tessera.pem"
    _make_certificate(certificate)
    text = CONFIGURATION.read_text()
    changes = {
        "maxconn 20000": "maxconn 500",  # two descriptors each, which this machine may not allow
        "bind :443": f"bind 127.0.0.1:{ports[0]}",
        "bind :80": f"bind 127.0.0.1:{ports[1]}",
        "/etc/haproxy/tessera.pem": str(certificate),
        '"${CONTROL_A}:8000"': f"127.0.0.1:{controls[0]}",
        '"${CONTROL_B}:8000"': f"127.0.0.1:{controls[1]}",
    }
    for old, new in changes.items():
        assert old in text, f"{CONFIGURATION.name} has no {old}"
        text = text.replace(old, new)
    path = folder / "haproxy.cfg"
    path.write_text(text)
    return path


@contextmanager
def load_balancer(
    folder: Path, controls: Sequence[int], *, host: str = HOST
) -> Iterator[LoadBalancer]:
    """Run HAProxy inside the block.

    Args:
        folder: directory of its files.
        controls: ports of the control hosts.
        host: name of the portal.
    """
    ports = free_port(), free_port()
    path = configured(folder, controls, ports)
    with (folder / "haproxy.log").open("wb") as log:
        process = subprocess.Popen(
            ["haproxy", "-f", str(path)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env={**os.environ, "TESSERA_HOST": host},
        )  # fmt: skip
    found = LoadBalancer(*ports, host)
    try:
        wait_until(lambda: found.get("/readyz")[0], 30, "HAProxy")
        yield found
    finally:
        stop(process)


def _make_certificate(path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
