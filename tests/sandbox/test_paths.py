"""Which paths programs may read, by what an environment's packages are."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from rocstar.sandbox.pool import paths


def test_python_paths_hold_the_standard_library() -> None:
    found = paths.python_paths()
    assert any(os.path.realpath(asyncio.__file__).startswith(path + "/") for path in found)
    assert all(os.path.isdir(path) for path in found)


def test_world_readable_means_every_folder_above_too(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    for path in (tmp_path, *tmp_path.parents):
        if not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o001)
    assert paths.is_world_readable(str(folder))
    folder.parent.chmod(0o700)
    assert not paths.is_world_readable(str(folder))
    folder.parent.chmod(0o755)
    folder.chmod(0o711)
    assert not paths.is_world_readable(str(folder))


def test_only_where_an_interpreter_has_its_packages_is_opened_by_a_line_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """... and no folder that is around a home."""
    monkeypatch.setenv("HOME", str(tmp_path / "lib" / "python3" / "dist-packages" / "home"))
    opened = ("a/lib/python3.12/site-packages", "a/lib64/python3.13t/site-packages", "a/lib/python3/dist-packages")
    closed = ("a", "a/src", "a/site-packages", "a/lib/python3.12", "a/lib/python3.12/site-packages/inner")
    others = ("lib/python3/dist-packages", "a/lib/python2.7/site-packages")
    for path in (*opened, *closed, *others):
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
    (tmp_path / "b" / "lib" / "python3.11").mkdir(parents=True)
    for link, target in (("site-packages", "a/src"), ("dist-packages", opened[0])):
        (tmp_path / "b" / "lib" / "python3.11" / link).symlink_to(tmp_path / target)
    links = ("b/lib/python3.11/site-packages", "b/lib/python3.11/dist-packages")
    folders = [str(tmp_path / path) for path in (*opened, *closed, *others, *links, "gone/lib/python3/site-packages")]
    assert paths.layered_packages([*folders, "", "lib/python3/site-packages"]) == sorted(
        str((tmp_path / path).resolve()) for path in opened
    )


def test_working_copies_are_what_is_named_beside_packages_and_read_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, below = (tmp_path / "venv" / "lib" / "python3" / "site-packages", tmp_path / "lib/python3/site-packages")
    for folder in (site / "inner", below, tmp_path / "src", tmp_path / "made"):
        folder.mkdir(parents=True)
    lines = ["import sys", "# " + str(tmp_path), "inner", str(below), str(tmp_path / "src"), str(tmp_path / "gone")]
    (site / "some.pth").write_text("\n".join(lines))
    (site / "broken.pth").write_bytes(b"\xff\xfe")
    for name, url in {"made": tmp_path / "made", "rocstar": tmp_path / "house", "wheel": None}.items():
        (site / f"{name}-1.dist-info").mkdir()
        (site / f"{name}-1.dist-info" / "METADATA").write_text(f"Name: {name}\n")
        if url:
            noted = {"url": f"file://{url}", "dir_info": {"editable": True}}
            (site / f"{name}-1.dist-info" / "direct_url.json").write_text(json.dumps(noted))
    monkeypatch.setattr(paths.sysconfig, "get_path", lambda name: str(site))
    monkeypatch.setattr(paths.site, "ENABLE_USER_SITE", False)
    assert paths.working_copies() == [str(tmp_path / "made"), str(tmp_path / "src")]


def test_a_link_opens_what_an_import_takes_and_nothing_that_is_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, packages = tmp_path / "home", tmp_path / "home" / "venv" / "lib" / "site-packages"
    for folder in (packages, home / ".ssh", home / ".cache" / "store", home / "work" / ".git", home / "lib"):
        folder.mkdir(parents=True)
    for file in ("one.py", "two.so", "id_rsa", "token.txt"):
        (home / file).write_text("x")
    os.mkfifo(home / "pipe.py")
    opened = {"numpy": ".cache/store", "numpy.libs": "lib", "one.py": "one.py", "two.so": "two.so"}
    # A store below a hidden folder is a usual one; a folder that is hidden itself holds no modules.
    (home / ".cache" / "store" / "numpy").mkdir()
    opened["numpy"] += "/numpy"
    closed = {"ssh": ".ssh", ".git": "work/.git", "id_rsa": "id_rsa", "token.txt": "token.txt"}
    closed |= {"home": ".", "venv": "venv", "itself": "venv/lib/site-packages", "all": "..", "gone": "none"}
    closed |= {"pipe.py": "pipe.py"}
    for name, target in (opened | closed).items():
        (packages / name).symlink_to(home / target)
    (packages / "root").symlink_to("/")
    (packages / "null.py").symlink_to("/dev/null")
    (packages / "loop").symlink_to(packages / "loop")
    (packages / "own.py").write_text("")
    monkeypatch.setattr(paths.sysconfig, "get_path", lambda name: str(packages))
    monkeypatch.setattr(paths.site, "ENABLE_USER_SITE", False)
    monkeypatch.setenv("HOME", str(home))
    assert paths.linked_packages() == sorted(str((home / target).resolve()) for target in opened.values())
    packages.rename(tmp_path / "away")
    assert paths.linked_packages() == []


def test_the_topmost_folder_that_is_closed_is_the_private_one(tmp_path: Path) -> None:
    for path in (tmp_path, *tmp_path.parents):
        if not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o001)
    venv = tmp_path / "home" / "project" / "venv"
    venv.mkdir(parents=True)
    assert paths.private_folders([str(venv)]) == []
    venv.parent.chmod(0o700)
    assert paths.private_folders([str(venv), str(venv / "lib")]) == [str(venv.parent)]
    (tmp_path / "home").chmod(0o710)
    assert paths.private_folders([str(venv)]) == [str(tmp_path / "home")]


@pytest.mark.parametrize("hops", [0, 1, 2])
def test_an_interpreter_is_kept_under_all_its_names(tmp_path: Path, hops: int) -> None:
    name = tmp_path / "real" / "python"
    name.parent.mkdir()
    name.write_text("")
    folders = [str(name.parent)]
    for hop in range(hops):
        link = tmp_path / f"link-{hop}" / "python"
        link.parent.mkdir()
        link.symlink_to(os.path.relpath(name, link.parent))
        name = link
        folders.append(str(link.parent))
    assert set(folders) <= set(paths.kept_paths(str(name)))


def test_a_user_without_a_name_and_a_home_has_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as a number: `Path.expanduser` raises there."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    with pytest.raises(RuntimeError):
        Path("~").expanduser()
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    assert paths.layered_packages([str(packages)]) == [str(packages.resolve())]
    assert paths.linked_packages([str(packages)]) == [str((tmp_path / "elsewhere").resolve())]
