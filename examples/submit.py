"""Submit an example: pack the scripts of its commands, upload them and submit the job.

    ./tessera login
    python3 submit.py pictures.yaml

Needs only the package `tessera`.
"""

import argparse
import gzip
import io
import os
import re
import tarfile
from pathlib import Path

import yaml

from tessera.cli.session import load_credentials
from tessera.client import DEFAULT_URL, Client


def scripts_of(document, directory):
    """The files in the directory of the specification that the commands of its roles name."""
    words = [word for role in document["roles"].values() for word in role["command"].split()]
    named = {word for word in words if re.fullmatch(r"\w+\.py", word)}
    return sorted(directory / name for name in named if (directory / name).is_file())


def packed(scripts):
    """An archive of the scripts, the same bytes every time."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for script in scripts:
            entry = tarfile.TarInfo(script.name)
            entry.size = script.stat().st_size
            archive.addfile(entry, io.BytesIO(script.read_bytes()))
    return gzip.compress(buffer.getvalue(), mtime=0)


def submit(path, client):
    """Upload the scripts and submit the job; its id."""
    document = yaml.safe_load(path.read_text())
    content = packed(scripts_of(document, path.parent))
    stored = client.upload(f"{path.stem}.tar.gz", content)
    return client.submit({**document, "source": {"archive": stored}}).id


def main():
    """Submit the specification to the portal of the last `tessera login`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("specification", type=Path)
    options = parser.parse_args()
    stored = load_credentials()
    url = os.environ.get("TESSERA_URL") or stored.url or DEFAULT_URL
    token = os.environ.get("TESSERA_TOKEN") or stored.token
    with Client(url, token=token) as client:
        print(f"job {submit(options.specification, client)}", flush=True)


if __name__ == "__main__":
    main()
