"""Files of a run for the own user of an image."""

import os
import stat
from pathlib import Path

from tessera.node import container_files


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_all_files_of_a_directory_are_open_and_programs_stay_programs(tmp_path: Path) -> None:
    top = tmp_path / "work"
    (top / "inner").mkdir(parents=True, mode=0o700)
    for name, mode in (("inner/data", 0o600), ("run.sh", 0o700)):
        (top / name).touch()
        (top / name).chmod(mode)

    container_files.open_to_all(str(top))

    assert {mode_of(top), mode_of(top / "inner")} == {0o777}
    assert mode_of(top / "inner" / "data") == 0o666
    assert mode_of(top / "run.sh") == 0o777


def test_links_open_nothing_outside(tmp_path: Path) -> None:
    outside, top = tmp_path / "outside", tmp_path / "work"
    (outside / "inner").mkdir(parents=True)
    (outside / "inner" / "key").touch()
    for path in (outside, outside / "inner", outside / "inner" / "key"):
        path.chmod(0o700)
    top.mkdir()
    (top / "directory").symlink_to(outside)
    (top / "file").symlink_to(outside / "inner" / "key")
    os.mkfifo(top / "pipe", 0o600)

    container_files.open_to_all(str(top))
    container_files.open_to_all(str(top / "directory"))

    assert {mode_of(path) for path in (outside, outside / "inner", outside / "inner" / "key")} == {
        0o700
    }
    assert mode_of(top / "pipe") == 0o600
