"""`rocstar data build`: rows of sources become tasks or conversations, with a decision on each.

    sources ──read each row by itself──> RowTable ──copies──> ──overlap──> ──difficulty──> ──draw──> OUT/
                                            on disk, OUT/work.db

    OUT/tasks.jsonl or conversations.jsonl   rows that are kept, by id, with their provenance
    OUT/dropped.jsonl                        rows that are not: one reason and its evidence each
    OUT/funnel.json                          the counts; written last: the build is finished

Invariant: the bytes of these files depend on the set of rows in each source and on the file of the build; not
on the order of rows, nor on where a build was killed. Memory depends on the evaluation sets alone. One
process with one thread; the same command resumes a killed build.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from rocstar.engine.record.files import whole_file
from rocstar.train.data.build_config import COMMIT, BuildConfig, SourceConfig, forbids_commercial_use
from rocstar.train.data.check import evidence_of, make_check, read_questions
from rocstar.train.data.difficulty import PassRate, read_attempts
from rocstar.train.data.funnel import FUNNEL, REASONS, Funnel, SourceInfo
from rocstar.train.data.row_table import SCHEMA, Candidate, Dropped, RowTable
from rocstar.train.data.task_rows import read_task
from rocstar.train.data.work_file import discard_work, open_work
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.run_directory import make_folder
from rocstar.train.tasks.rows import HUB, local_copy, rows_from, source_files

RULES: Final = 2
"""Version of the rules; an unfinished build of an older version is started again."""
WORK: Final = "work.db"
DROPPED: Final = "dropped.jsonl"
COMMITTED_ROWS: Final = 2_000
"""Rows per transaction: a killed build loses no more."""
_CHUNK: Final = 1 << 20


def build(config: BuildConfig, out: Path, *, commercial: bool = False, force: bool = False) -> Funnel:
    """Build into the folder `out`, or resume a killed build there.

    Raises:
        ConfigError: a source cannot be used, nothing is left of the rows, or `out` is in use.
    """
    sources = [source_info(source, commercial=commercial) for source in config.sources]
    about = [RULES, config.model_dump(mode="json"), commercial, _fingerprints(config, sources)]
    if (out / FUNNEL).is_file():
        if not force:
            raise ConfigError(
                f"--out {str(out)!r} holds a finished build; take another folder, or replace it with --force"
            )
        (out / FUNNEL).unlink()
        discard_work(out / WORK)
    elif not (out / WORK).exists():
        make_folder(out)
    try:
        with open_work(out / WORK, SCHEMA, about) as database:
            builder = _Builder(config, RowTable(database), sources, commercial)
            builder.run()
            funnel = builder.funnel()
            if not sum(funnel.kept.values()):
                raise ConfigError(f"nothing is left of {sum(funnel.read.values()):,} rows:\n{funnel.as_text()}")
            for name, rows in ((f"{funnel.kind}.jsonl", builder.kept()), (DROPPED, builder.dropped())):
                with whole_file(out / name) as file:
                    file.writelines(json.dumps(row).encode() + b"\n" for row in rows)
            with whole_file(out / FUNNEL) as file:
                file.write(json.dumps(funnel.as_json(), indent=1).encode() + b"\n")
    except ConfigError:  # a resumed build would raise it again
        discard_work(out / WORK)
        if not any(out.iterdir()):
            out.rmdir()
        raise
    discard_work(out / WORK)
    return funnel


class _Builder:
    """The phases of a build, each of which is finished once."""

    def __init__(self, config: BuildConfig, table: RowTable, sources: list[SourceInfo], commercial: bool) -> None:
        self._config, self._table, self._sources, self._commercial = config, table, sources, commercial
        self._names = [one.name for one in sources]

    def run(self) -> None:
        """Run the missing phases."""
        phases: Mapping[str, Callable[[], None]] = {
            "read": self._read,
            "copies": lambda: self._table.resolve_duplicates(self._names),
            "overlap": self._overlap,
            "difficulty": self._difficulty,
            "draw": self._draw,
        }
        for phase, run_phase in phases.items():
            if not self._table.is_done(phase):
                run_phase()

    def _read(self) -> None:
        for number, source in enumerate(self._config.sources):
            if self._sources[number].left_out:
                continue
            read = self._reader(source)
            rows = rows_from(source.source, Path(), split=source.split, revision=source.revision or None)
            for _ in islice(rows, self._table.position(number)):
                pass
            while batch := [read(row) for _, row in islice(rows, COMMITTED_ROWS)]:
                self._table.add(number, batch)
            # If no row can be read, the build file is wrong. With MIN, SQLite takes the other columns from
            # the row of the minimum.
            first, num_unreadable, _ = self._table.database.execute(
                "SELECT evidence, COUNT(*), MIN(number) FROM rows WHERE source = ? AND reason = 'unreadable'",
                (number,),
            ).fetchone()
            if self._table.position(number) == num_unreadable:
                why = json.loads(first)["error"] if first else "it is empty"
                raise ConfigError(
                    f"source {self._names[number]!r}: none of its {num_unreadable:,} rows can be read: {why}"
                )
        with self._table.transaction():
            self._table.database.execute("CREATE INDEX by_key ON rows (key) WHERE reason IS NULL")
            self._table.finish("read")

    def _reader(self, source: SourceConfig) -> Callable[[Any], Candidate | Dropped]:
        config = self._config
        if config.kind == "tasks":
            return partial(read_task, source=source, clean=config.clean, commercial=self._commercial)
        from rocstar.train.data.conversation_rows import ConversationReader

        return ConversationReader(source, config.conversations, commercial=self._commercial).read

    def _overlap(self) -> None:
        rule, table = self._config.overlap, self._table
        if rule is None:
            return
        questions = read_questions(rule.against)
        check = make_check(questions, rule.mode)
        met: list[tuple[bytes, int]] = []

        def commit() -> None:
            if met:
                with table.transaction():
                    table.database.executemany("UPDATE rows SET met = ? WHERE number = ?", met)
                met.clear()

        for row, found in table.live("CASE WHEN met IS NULL THEN json_array(problem, label) ELSE met END"):
            if isinstance(found, str):
                found = check.meet(*json.loads(found))
                met.append((found, row.number))
            check.count(found)
            if len(met) == COMMITTED_ROWS:
                commit()
        commit()
        check.close()
        with table.transaction():
            for row, found in table.live("met"):
                verdict = check.judge(found)
                if verdict.level in rule.drop:
                    table.drop(row.number, "overlap", evidence_of(verdict, questions))
                else:
                    table.note(row, {"overlap": evidence_of(verdict, questions)})
            table.finish("overlap")

    def _difficulty(self) -> None:
        rule, table = self._config.difficulty, self._table
        if rule is None:
            return
        with table.transaction():
            for path in rule.rollouts:
                table.database.executemany(
                    "INSERT INTO attempts VALUES (?, ?, 1) ON CONFLICT DO UPDATE"
                    " SET correct = correct + excluded.correct, attempts = attempts + 1",
                    ((task, int(correct)) for task, correct in read_attempts(Path(path))),
                )
            for row, _ in table.live():
                found = table.database.execute(
                    "SELECT correct, attempts FROM attempts WHERE task = ?", (row.id,)
                ).fetchone()
                if found is None:
                    if rule.unmeasured == "drop":
                        table.drop(row.number, "unmeasured", {})
                    continue
                rate = PassRate(*found)
                if reason := rate.rejection_reason(rule):
                    table.drop(row.number, reason, rate.as_json())
                else:
                    table.note(row, {"pass_rate": rate.as_json()})
            table.finish("difficulty")

    def _draw(self) -> None:
        with self._table.transaction():
            for number, source in enumerate(self._config.sources):
                if source.most:
                    beyond = self._table.database.execute(
                        "SELECT number FROM rows WHERE reason IS NULL AND source = ?"
                        " ORDER BY draw(?, id), id LIMIT -1 OFFSET ?",
                        (number, self._config.seed, source.most),
                    ).fetchall()
                    for (row,) in beyond:
                        self._table.drop(row, "not_drawn", {"most": source.most})
            self._table.finish("draw")

    def kept(self) -> Iterator[dict[str, Any]]:
        """Yield the written rows, by id."""
        found = self._table.database.execute(
            "SELECT source, row, id, body, licence, decisions FROM rows WHERE reason IS NULL ORDER BY id"
        )
        for source, row, id_, body, licence, decisions in found:
            origin = self._sources[source]
            provenance: dict[str, Any] = {"source": origin.name, "from": origin.source, "row": row}
            provenance |= {"revision": origin.revision} if origin.revision else {}
            provenance |= {"files": origin.files} if origin.files else {}
            named = {"data_source": origin.name} if self._config.kind == "tasks" else {}
            yield {
                "id": id_,
                **json.loads(body),
                **named,
                "provenance": {**provenance, "licence": licence, "decided": json.loads(decisions)},
            }

    def dropped(self) -> Iterator[dict[str, Any]]:
        """Yield the dropped rows, each with its reason."""
        found = self._table.database.execute(
            "SELECT source, row, reason, evidence, shown FROM rows WHERE reason IS NOT NULL"
            " ORDER BY source, row, reason, evidence, shown"
        )
        for source, row, reason, evidence, shown in found:
            end = {"reason": reason, "evidence": json.loads(evidence), "shown": shown}
            yield {"source": self._names[source], "row": row, **end}

    def funnel(self) -> Funnel:
        """Return the counts of all rows."""
        kept: dict[str, int] = {}
        read: dict[str, int] = dict.fromkeys(self._names, 0)
        lost: dict[str, dict[str, int]] = {}
        for reason, source, count in self._table.database.execute(
            "SELECT reason, source, COUNT(*) FROM rows GROUP BY reason, source"
        ):
            name = self._names[source]
            read[name] += count
            if reason is None:
                kept[name] = count
            else:
                lost.setdefault(reason, {})[name] = count
        return Funnel(
            kind=self._config.kind,
            sources=self._sources,
            read=read,
            kept=kept,
            dropped={reason: dict(sorted(lost[reason].items())) for reason in REASONS if reason in lost},
            notes=list(self._notes(kept)),
        )

    def _notes(self, kept: Mapping[str, int]) -> Iterator[str]:
        for source in self._config.sources:
            if source.source.startswith(HUB) and not COMMIT.fullmatch(source.revision):
                yield f"{source.name}: revision {source.revision!r} may move; name a commit"
            if source.most and kept.get(source.name, 0) < source.most:
                yield f"{source.name}: {kept.get(source.name, 0):,} rows, {source.most:,} were asked for"
        if self._config.difficulty is not None:
            row = self._table.database.execute("SELECT COUNT(*), SUM(attempts) FROM attempts").fetchone()
            yield f"the rollouts have {row[1] or 0:,} scored attempts; tasks: {row[0]:,}"


def describe_sources(config: BuildConfig, *, commercial: bool, as_json: bool) -> str:
    """Return the sources of a checked build file, as text or JSON. ConfigError for a folder without its
    split."""
    sources = [source_info(source, commercial=commercial) for source in config.sources]
    if as_json:
        return json.dumps({"config": config.model_dump(mode="json"), "sources": [asdict(one) for one in sources]})
    lines = [f"{config.kind} of {len(sources)} sources"]
    for one in sources:
        where = one.left_out or ("local files" if one.files else "the hub")
        lines.append(f"{one.name}: {one.source} {one.revision}, {one.licence}; {where}".replace(" ,", ","))
    return "\n".join(lines)


def source_info(source: SourceConfig, *, commercial: bool) -> SourceInfo:
    """Return a source's entry in provenance and funnel. Hash its local files."""
    left_out = ""
    if commercial and not source.licence_field:
        left_out = forbids_commercial_use(source.licence) or ""
    return SourceInfo(
        name=source.name,
        source=source.source if source.source.startswith(HUB) else Path(source.source).name,
        revision=source.revision,
        licence=source.licence,
        files="" if left_out else _hash_source(source.source, source.split),
        left_out=left_out,
    )


def _hash_source(source: str, split: str) -> str:
    """Return the hash of a source's local files, or "" if it is only on the hub."""
    is_of_hub = source.startswith(HUB)
    files = local_copy(source, split=split) if is_of_hub else source_files(source, Path(), split=split)
    return hash_files(files) if files else ""


def hash_files(files: list[Path]) -> str:
    """Return a hash of the contents of files, each with its length, in their order."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def _fingerprints(config: BuildConfig, sources: list[SourceInfo]) -> list[str]:
    """Return the hashes of all local files that are read."""
    found = [one.files for one in sources]
    if config.overlap:
        found += [_hash_source(one.source, one.split) for one in config.overlap.against]
    for name in config.difficulty.rollouts if config.difficulty else ():
        path = Path(name)
        files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
        found.append(hash_files(files))
    return found
