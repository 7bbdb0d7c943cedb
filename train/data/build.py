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

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from rocstar.engine.record.files import whole_file
from rocstar.train.data.build_config import BuildConfig, moves
from rocstar.train.data.candidate import RowReader
from rocstar.train.data.check import evidence_of, make_check, read_questions
from rocstar.train.data.copies import settle_copies
from rocstar.train.data.difficulty import PassRate, read_attempts
from rocstar.train.data.funnel import FUNNEL, REASONS, Funnel, SourceTold
from rocstar.train.data.row_table import SCHEMA, RowTable
from rocstar.train.data.sources import hash_of, hash_of_source, rows_of_source, told_of
from rocstar.train.data.task_rows import TaskReader
from rocstar.train.data.work_file import discard_work, open_work
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.targets import make_folder

RULES: Final = 2
"""Grows when the same row may become something else; an unfinished build of older rules is begun anew."""
WORK: Final = "work.db"
DROPPED: Final = "dropped.jsonl"
COMMITTED_ROWS: Final = 2_000
"""A killed build loses no more."""


def build(config: BuildConfig, out: Path, *, commercial: bool = False, force: bool = False) -> Funnel:
    """Build into the folder `out`, or resume a killed build there.

    Raises:
        ConfigError: a source cannot be used, nothing is left of the rows, or `out` is in use.
    """
    told = [told_of(source, commercial=commercial) for source in config.sources]
    about = [RULES, config.model_dump(mode="json"), commercial, _fingerprints(config, told)]
    _claim(out, force=force)
    try:
        with open_work(out / WORK, SCHEMA, about) as database:
            funnel = _build(_Builder(config, RowTable(database), told, commercial), out)
    except ConfigError:  # no kill: the same would be wrong again
        discard_work(out / WORK)
        if not any(out.iterdir()):
            out.rmdir()
        raise
    discard_work(out / WORK)
    return funnel


def _build(builder: _Builder, out: Path) -> Funnel:
    """The phases that are not done yet, then the files."""
    builder.work()
    funnel = builder.funnel()
    if not sum(funnel.kept.values()):
        raise ConfigError(f"nothing is left of {sum(funnel.read.values()):,} rows:\n{funnel.as_text()}")
    _write_lines(out / f"{funnel.kind}.jsonl", builder.kept())
    _write_lines(out / DROPPED, builder.dropped())
    _write_whole(out / FUNNEL, iter([json.dumps(funnel.as_json(), indent=1) + "\n"]))
    return funnel


class _Builder:
    """The phases of a build, each of which is finished once."""

    def __init__(
        self, config: BuildConfig, table: RowTable, told: list[SourceTold], commercial: bool
    ) -> None:
        self._config, self._table, self._told, self._commercial = config, table, told, commercial
        self._names = [one.name for one in told]

    def work(self) -> None:
        """Run the missing phases."""
        phases: Mapping[str, Callable[[], None]] = {
            "read": self._read,
            "copies": self._copies,
            "overlap": self._overlap,
            "difficulty": self._difficulty,
            "draw": self._draw,
        }
        for phase, work in phases.items():
            if not self._table.is_done(phase):
                work()

    def _read(self) -> None:
        for number, source in enumerate(self._config.sources):
            if self._told[number].left_out:
                continue
            reader, rows = self._reader(number), rows_of_source(source)
            for _ in islice(rows, self._table.position(number)):
                pass
            while batch := [reader.read(row) for row in islice(rows, COMMITTED_ROWS)]:
                self._table.add(number, batch)
            self._check_source(number)
        with self._table.transaction():
            self._table.database.execute("CREATE INDEX by_key ON rows (key) WHERE reason IS NULL")
            self._table.finish("read")

    def _reader(self, number: int) -> RowReader:
        source, config = self._config.sources[number], self._config
        if config.kind == "tasks":
            return TaskReader(source, config.clean, commercial=self._commercial)
        from rocstar.train.data.conversation_rows import ConversationReader

        return ConversationReader(source, config.conversations, commercial=self._commercial)

    def _check_source(self, number: int) -> None:
        """A source of which no row can be read is a mistake in the file, and no row's."""
        read = self._table.position(number)
        first = self._table.database.execute(
            "SELECT evidence FROM rows WHERE source = ? AND reason = 'unreadable' ORDER BY number LIMIT 1",
            (number,),
        ).fetchone()
        bad = self._table.database.execute(
            "SELECT COUNT(*) FROM rows WHERE source = ? AND reason = 'unreadable'", (number,)
        ).fetchone()[0]
        if read == bad:
            why = json.loads(first[0])["error"] if first else "it is empty"
            raise ConfigError(f"source {self._names[number]!r}: none of its {read:,} rows can be read: {why}")

    def _copies(self) -> None:
        with self._table.transaction():
            settle_copies(self._table, self._names)
            self._table.finish("copies")

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
                    table.tell(row, {"overlap": evidence_of(verdict, questions)})
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
                if reason := rate.refused(rule):
                    table.drop(row.number, reason, rate.as_json())
                else:
                    table.tell(row, {"pass_rate": rate.as_json()})
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
        for source, row, id_, body, licence, told in self._table.kept():
            origin = self._told[source]
            provenance: dict[str, Any] = {"source": origin.name, "from": origin.source, "row": row}
            provenance |= {"revision": origin.revision} if origin.revision else {}
            provenance |= {"files": origin.files} if origin.files else {}
            named = {"data_source": origin.name} if self._config.kind == "tasks" else {}
            yield {
                "id": id_,
                **body,
                **named,
                "provenance": {**provenance, "licence": licence, "decided": told},
            }

    def dropped(self) -> Iterator[dict[str, Any]]:
        """Yield the dropped rows, each with its reason."""
        for source, row, reason, evidence, shown in self._table.dropped():
            yield {
                "source": self._names[source],
                "row": row,
                "reason": reason,
                "evidence": evidence,
                "shown": shown,
            }

    def funnel(self) -> Funnel:
        """The counts of all rows."""
        kept: dict[str, int] = {}
        read: dict[str, int] = dict.fromkeys(self._names, 0)
        lost: dict[str, dict[str, int]] = {}
        for reason, source, count in self._table.counts():
            name = self._names[source]
            read[name] += count
            if reason is None:
                kept[name] = count
            else:
                lost.setdefault(reason, {})[name] = count
        return Funnel(
            kind=self._config.kind,
            sources=self._told,
            read=read,
            kept=kept,
            dropped={reason: dict(sorted(lost[reason].items())) for reason in REASONS if reason in lost},
            notes=list(self._notes(kept)),
        )

    def _notes(self, kept: Mapping[str, int]) -> Iterator[str]:
        for source in self._config.sources:
            if moves(source):
                yield f"{source.name}: revision {source.revision!r} may move; name a commit"
            if source.most and kept.get(source.name, 0) < source.most:
                yield f"{source.name}: {kept.get(source.name, 0):,} rows, {source.most:,} were asked for"
        if self._config.difficulty is not None:
            row = self._table.database.execute("SELECT COUNT(*), SUM(attempts) FROM attempts").fetchone()
            yield f"the rollouts have {row[1] or 0:,} scored attempts; tasks: {row[0]:,}"


@dataclass(frozen=True, slots=True)
class DryRun:
    """The sources of a build."""

    config: BuildConfig
    sources: list[SourceTold]

    def as_json(self) -> dict[str, Any]:
        """One JSON object."""
        return {
            "config": self.config.model_dump(mode="json"),
            "sources": [asdict(one) for one in self.sources],
        }

    def as_text(self) -> str:
        """A line for each source."""
        lines = [f"{self.config.kind} of {len(self.sources)} sources"]
        for one in self.sources:
            where = one.left_out or ("local files" if one.files else "the hub")
            lines.append(
                f"{one.name}: {one.source} {one.revision}, {one.licence}; {where}".replace(" ,", ",")
            )
        return "\n".join(lines)


def dry_run(config: BuildConfig, *, commercial: bool) -> DryRun:
    """Return the sources of a checked build file. Raise ConfigError for a folder without its split."""
    return DryRun(config, [told_of(source, commercial=commercial) for source in config.sources])


def _claim(out: Path, *, force: bool) -> None:
    """See that the folder is new, empty, or an unfinished build's; with `force` also a finished one's."""
    if (out / FUNNEL).is_file():
        if not force:
            raise ConfigError(
                f"--out {str(out)!r} holds a finished build; take another folder, or replace it with --force"
            )
        (out / FUNNEL).unlink()
        discard_work(out / WORK)
    elif not (out / WORK).exists():
        make_folder(out)


def _fingerprints(config: BuildConfig, told: list[SourceTold]) -> list[str]:
    """Hashes of everything local that is read."""
    found = [one.files for one in told]
    if config.overlap:
        found += [hash_of_source(one.source, one.split) for one in config.overlap.against]
    for name in config.difficulty.rollouts if config.difficulty else ():
        path = Path(name)
        files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
        found.append(hash_of(files))
    return found


def _write_lines(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    _write_whole(path, (json.dumps(row) + "\n" for row in rows))


def _write_whole(path: Path, parts: Iterator[str]) -> None:
    with whole_file(path) as file:
        file.writelines(part.encode() for part in parts)
