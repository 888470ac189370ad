"""Settings of the test run: no broker, one database alias, cheap password hashes."""

import os

os.environ.setdefault("TESSERA_REDIS_URL", "memory://")
os.environ.setdefault("TESSERA_SECRET_KEY", "only-for-tests-" + "0" * 32)

from portal.settings import *  # noqa: F403 this module is the settings with a few changes

# Tests run inside one transaction on one connection; a second one would not see their rows.
SNAPSHOT_DATABASE = "default"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
AXES_ENABLED = False
