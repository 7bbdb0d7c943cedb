"""Facts of an evaluation from manifest.json and config.toml: its model, settings and data."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rocstar.train.evaluation.tables import Results
from rocstar.train.record.manifest import ManifestError, read_manifest
from rocstar.train.record.run_directory import CONFIG

SHORT: Final = 12
"""Characters of a digest in the page."""
MAX_MANIFEST: Final = 60_000
"""The maximum characters of the manifest in the page."""


class ManifestFacts:
    """The entries of manifest.json and config.toml of an evaluation, if these files exist."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.problem = ""
        """The reason why the manifest is unreadable, or ""."""
        try:
            starts = read_manifest(directory)
        except ManifestError as error:
            starts, self.problem = [], str(error)
        recorded = [start for start in starts if isinstance(start.get("evaluation"), Mapping)]
        self.num_starts = len(starts)
        self._start: Mapping[str, Any] = (recorded or starts or [{}])[-1]

    def _at(self, *path: str) -> Any:
        """Return a value of the start's entry, or None."""
        found: Any = self._start
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    @property
    def model(self) -> str:
        """The name of the model in its recipe; for an evaluation of a run, run and step."""
        run_step = self._at("evaluation", "model", "step")
        if run_step is not None and not (self._directory / CONFIG).is_file():
            return f"{self._directory.resolve().parent.parent.name}, step {run_step}"
        try:
            recipe = tomllib.loads((self._directory / CONFIG).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            return self._directory.resolve().name
        model = recipe.get("model")
        return str(model.get("path", "")) if isinstance(model, dict) else self._directory.resolve().name

    def table(self, results: Results) -> dict[str, str]:
        """Return the known facts by name."""
        digests = self._at("evaluation", "model") or {}
        names = ("weights", "tokenizer", "template")
        known = [f"{name} {_short(digests[name])}" for name in names if digests.get(name)]
        version = digests.get("version")
        known += [f"policy version {version}"] if version is not None else []
        facts = {
            "model": ", ".join(known),
            "engine": self._engine(),
            "seed": self._seed(results),
            "sandbox": self._sandbox(),
            "code": self._code(),
            "made": self._made(),
        }
        return {name: value for name, value in facts.items() if value}

    def _engine(self) -> str:
        settings = self._at("evaluation", "settings", "engine")
        if not isinstance(settings, Mapping):
            return ""
        words = [str(settings.get("kind")), str(self._at("evaluation", "settings", "dtype") or "")]
        words += ["deterministic"] if settings.get("deterministic") else []
        return ", ".join(filter(None, words))

    def _seed(self, results: Results) -> str:
        noise = self._at("evaluation", "settings", "noise_seed")
        return "" if results.seed is None else f"{results.seed}" + (f" (noise {noise})" if noise else "")

    def _sandbox(self) -> str:
        sandbox = self._at("evaluation", "sandbox")
        if not isinstance(sandbox, Mapping):
            return ""
        return f"{sandbox.get('tier')}: {', '.join(map(str, sandbox.get('layers') or []))}"

    def _code(self) -> str:
        words = [f"rocstar {self._at('rocstar')}"] if self._at("rocstar") else []
        if commit := self._at("commit"):
            words.append(f"commit {_short(commit)}{' with changes' if self._at('dirty') else ''}")
        others = ("python", "torch", "transformers")
        words += [f"{name} {self._at(name)}" for name in others if self._at(name)]
        return ", ".join(words)

    def _made(self) -> str:
        started, ended = self._at("started"), self._at("ended")
        if not started:
            return ""
        starts = f", {self.num_starts} starts" if self.num_starts > 1 else ""
        return f"{started} to {ended}{starts}" if ended else f"{started}{starts}"

    def settings(self, name: str) -> str:
        """Return a sentence about the settings and the data of a set, or "" if unknown."""
        asked = self._at("evaluation", "settings", "sampling", name)
        words = []
        if isinstance(asked, Mapping):
            words.append(
                f"Prompted as {asked.get('asking')}: {asked.get('samples')} samples at temperature "
                f"{asked.get('temperature')}, at most {_count(asked.get('max_response_tokens'))} tokens and "
                f"{_count(asked.get('max_turns'))} turns."
            )
        data = self._at("evaluation", "data", name)
        if isinstance(data, Mapping):
            source = f"{data.get('repository')} at {_short(data['revision'])}" if data.get("revision") else ""
            rows = {"True": "the published rows", "False": "other rows than the published ones"}
            known = rows.get(str(data.get("is_known")), "")
            parts = [source, known, f"digest {_short(data.get('digest'))}"]
            licence = f" Licence: {data['licence']}." if data.get("licence") else ""
            words.append(f"Data: {', '.join(filter(None, parts))}.{licence}")
        if verifier := self._at("evaluation", "verifier", name):
            words.append(f"Verifier {_short(verifier)}.")
        return " ".join(words)

    def whole(self) -> str:
        """Return the start's entry as JSON."""
        text = json.dumps(self._start, indent=1, ensure_ascii=False) if self._start else ""
        return text[:MAX_MANIFEST]

    def command(self) -> str:
        """Return the command line."""
        words: Sequence[Any] = self._at("command") or []
        return " ".join(map(str, words))


def _short(digest: Any) -> str:
    return str(digest)[:SHORT]


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
