"""The image's layout is what its digests say, and the same folder gives the same bytes.

What is in the image, and that it serves, only `docker/sandbox-image` shows: it needs root and minutes.
"""

import gzip
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "docker" / "oci_layout.py"


@pytest.fixture(scope="module")
def oci() -> ModuleType:
    spec = importlib.util.spec_from_file_location("oci_layout", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_root(folder: Path) -> Path:
    (folder / "usr" / "bin").mkdir(parents=True)
    (folder / "usr" / "bin" / "tool").write_text("#!/bin/sh\n")
    (folder / "usr" / "bin" / "tool").chmod(0o755)
    (folder / "bin").symlink_to("usr/bin")
    (folder / "empty").mkdir()
    return folder


def build(root: Path, layout: Path) -> subprocess.CompletedProcess[str]:
    words = ["--port", "8080", "--env", "A=b", "--entrypoint", "serve", "--port", "1"]
    return subprocess.run([sys.executable, SCRIPT, root, layout, *words], capture_output=True, text=True, check=False)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_blob_is_what_its_name_says(tmp_path: Path) -> None:
    assert build(make_root(tmp_path / "root"), tmp_path / "layout").returncode == 0
    blobs = tmp_path / "layout" / "blobs" / "sha256"
    for path in blobs.iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    (entry,) = json.loads((tmp_path / "layout" / "index.json").read_text())["manifests"]
    manifest = read(blobs, entry)
    image = read(blobs, manifest["config"])
    (layer,) = manifest["layers"]
    plain = gzip.decompress((blobs / layer["digest"].partition(":")[2]).read_bytes())
    assert image["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(plain).hexdigest()}"]
    assert (image["os"], image["config"]["Entrypoint"]) == ("linux", ["serve", "--port", "1"])
    assert image["config"]["ExposedPorts"] == {"8080/tcp": {}}
    assert len(list(blobs.iterdir())) == 3


def read(blobs: Path, entry: dict[str, Any]) -> Any:
    data = (blobs / entry["digest"].partition(":")[2]).read_bytes()
    assert len(data) == entry["size"]
    return json.loads(data)


def test_the_same_folder_gives_the_same_bytes_whenever_it_was_made(tmp_path: Path) -> None:
    one, other = make_root(tmp_path / "one"), make_root(tmp_path / "other")
    os.utime(other / "usr" / "bin" / "tool", (1e9, 1e9))
    assert build(one, tmp_path / "a").returncode == build(other, tmp_path / "b").returncode == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_it_is_unpacked_as_it_was_unless_a_layer_was_changed(oci: ModuleType, tmp_path: Path) -> None:
    root = make_root(tmp_path / "root")
    build(root, tmp_path / "layout")
    assert oci.unpack(tmp_path / "layout", tmp_path / "unpacked")["Env"] == ["A=b"]
    assert contents(tmp_path / "unpacked") == contents(root)
    assert (tmp_path / "unpacked" / "bin").readlink() == Path("usr/bin")
    assert (tmp_path / "unpacked" / "usr" / "bin" / "tool").stat().st_mode & 0o777 == 0o755
    largest = max((tmp_path / "layout" / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[-1] ^= 1
    largest.write_bytes(data)
    with pytest.raises(ValueError, match="is not what its name says"):
        oci.unpack(tmp_path / "layout", tmp_path / "again")


def test_an_archive_holds_the_layout(oci: ModuleType, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, SCRIPT, make_root(tmp_path / "root"), tmp_path / "layout"),
            *("--archive", tmp_path / "image.tar", "--entrypoint", "serve"),
        ],
        check=False,
    )
    assert done.returncode == 0
    with tarfile.open(tmp_path / "image.tar") as tar:
        assert {"oci-layout", "index.json"} <= set(tar.getnames())
        # What docker loaded before it knew layouts: it went on without a word, and without an image.
        (image,) = json.load(tar.extractfile("manifest.json") or pytest.fail("no file"))
        assert image["RepoTags"] == ["latest"] and len(image["Layers"]) == 1
        assert {image["Config"], *image["Layers"]} <= set(tar.getnames())


@pytest.mark.parametrize(("root", "layout"), [("nowhere", "new"), (".", ".")])
def test_a_mistake_is_one_line_and_exit_2(tmp_path: Path, root: str, layout: str) -> None:
    done = build(tmp_path / root, tmp_path / layout)
    assert (done.returncode, done.stderr.count("\n"), "Traceback" in done.stderr) == (2, 1, False)
