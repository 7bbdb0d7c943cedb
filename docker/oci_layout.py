"""Writes an OCI image layout from a folder: one layer, a configuration, a manifest and an index.

    python docker/oci_layout.py ROOT LAYOUT --entrypoint rocstar sandbox serve

LAYOUT is what `skopeo copy oci:LAYOUT ...` and `podman pull oci:LAYOUT` take; `--archive FILE` writes it as
one file besides, for `podman load` and `docker load`. The same folder gives the same bytes: names are sorted,
owners are numbers, and all times are SOURCE_DATE_EPOCH, or 0. Standard library only.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import platform
import sys
import tarfile
from pathlib import Path
from typing import Any

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
CHUNK = 1 << 20


class _Hashed:
    """A file that is written, and the digest of what went in."""

    def __init__(self, file: Any) -> None:
        self._file, self._hash, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self.size += len(data)
        self._file.write(data)
        return len(data)

    def flush(self) -> None: ...

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def write_layer(root: Path, to: Any, seconds: int) -> str:
    """The folder as a tar, compressed. Returns the digest of the tar itself, as the configuration has it."""
    with gzip.GzipFile(filename="", mode="wb", fileobj=to, compresslevel=6, mtime=seconds) as packed:
        plain = _Hashed(packed)
        with tarfile.open(fileobj=plain, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for path in sorted(root.rglob("*")):
                info = tar.gettarinfo(path, arcname=str(path.relative_to(root)))
                if info is None:  # a socket
                    continue
                info.uname = info.gname = ""
                info.mtime = seconds
                if not info.isreg():
                    tar.addfile(info)
                    continue
                with path.open("rb") as content:
                    tar.addfile(info, content)
    return plain.digest


def write_layout(root: Path, layout: Path, *, name: str, config: dict[str, Any], seconds: int) -> dict[str, Any]:
    """Writes `layout`, which must not be there. `config`: of the containers (Entrypoint and the like).
    Returns the manifest. Raises OSError."""
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    part = blobs / "part"
    with part.open("wb") as file:
        hashed = _Hashed(file)
        diff_id = write_layer(root, hashed, seconds)
    layer = {"mediaType": LAYER, "digest": hashed.digest, "size": hashed.size}
    part.rename(blobs / hashed.digest.partition(":")[2])

    def add(kind: str, value: Any) -> dict[str, Any]:
        data = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    image = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
    }
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": add(CONFIG, image), "layers": [layer]}
    entry = {**add(MANIFEST, manifest), "annotations": {"org.opencontainers.image.ref.name": name}}
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}
    (layout / "index.json").write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}\n')
    return manifest


def write_archive(layout: Path, file: Path, *, name: str, manifest: dict[str, Any]) -> None:
    """Writes the layout as one tar. Docker before 25 knows no layouts: it looks for manifest.json."""

    def blob(entry: dict[str, Any]) -> str:
        return f"blobs/sha256/{entry['digest'].partition(':')[2]}"

    image = {
        "Config": blob(manifest["config"]),
        "RepoTags": [name],
        "Layers": [blob(layer) for layer in manifest["layers"]],
    }
    data = json.dumps([image]).encode()
    with tarfile.open(file, "w") as tar:
        for path in sorted(layout.rglob("*")):
            tar.add(path, arcname=str(path.relative_to(layout)), recursive=False)
        info = tarfile.TarInfo("manifest.json")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))


def unpack(layout: Path, root: Path) -> dict[str, Any]:
    """The reverse, for a trial: checks every digest on the way; the configuration of the containers.
    Raises ValueError for a layout that is not what its names say."""

    def blob(entry: dict[str, Any]) -> Path:
        path = layout / "blobs" / "sha256" / entry["digest"].partition(":")[2]
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if f"sha256:{found}" != entry["digest"] or path.stat().st_size != entry["size"]:
            raise ValueError(f"{path} is not what its name says")
        return path

    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    manifest = json.loads(blob(entry).read_text())
    image: dict[str, Any] = json.loads(blob(manifest["config"]).read_text())
    for layer, diff_id in zip(manifest["layers"], image["rootfs"]["diff_ids"], strict=True):
        with gzip.open(blob(layer)) as plain:
            found = hashlib.sha256()
            while chunk := plain.read(CHUNK):
                found.update(chunk)
        if f"sha256:{found.hexdigest()}" != diff_id:
            raise ValueError(f"the layer {layer['digest']} does not hold {diff_id}")
        with tarfile.open(blob(layer)) as tar:
            # Of our own making. As an attribute, which Python 3.11.2 does not look at, unlike an argument.
            tar.extraction_filter = lambda member, _: member
            tar.extractall(root, numeric_owner=True)
    return dict(image["config"])


def main() -> int:
    """Exit code 2 for a folder that is not there, or a layout that is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("root", type=Path, help="the folder that becomes the image's file system")
    parser.add_argument("layout", type=Path, help="a folder to make")
    parser.add_argument("--name", default="latest", help="the image's name in its index (default: %(default)s)")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="write the layout as one tar besides")
    parser.add_argument("--port", type=int, action="append", default=[], help="a port that it listens on")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--entrypoint", nargs=argparse.REMAINDER, default=[], help="the command, to the end")
    options = parser.parse_args()
    if not options.root.is_dir() or options.layout.exists():
        problem = f"{options.root} is no folder" if not options.root.is_dir() else f"{options.layout} is there"
        print(f"oci_layout: {problem}", file=sys.stderr)
        return 2
    config: dict[str, Any] = {"Env": options.env, "Entrypoint": options.entrypoint}
    if options.port:
        config["ExposedPorts"] = {f"{port}/tcp": {} for port in options.port}
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    manifest = write_layout(options.root, options.layout, name=options.name, config=config, seconds=seconds)
    if options.archive is not None:
        write_archive(options.layout, options.archive, name=options.name, manifest=manifest)
    print(f"{options.layout}: {manifest['layers'][0]['size'] / 1e6:.0f} MB, {manifest['config']['digest']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
