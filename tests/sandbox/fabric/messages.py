"""Messages of the fabric without chunks of their own, for tests."""

from collections.abc import Sequence

from rocstar.sandbox.fabric.wire import Answer, EntryDraft, WireCall, WrittenAnswers, WrittenEntry


def encode_entry(calls: Sequence[WireCall]) -> bytes:
    draft = EntryDraft([(call.id, call.request) for call in calls])
    return draft.encode([call.remaining_s for call in calls])


def decode_entry(blob: bytes, chunks: Sequence[bytes] = ()) -> list[WireCall]:
    return WrittenEntry(blob).calls(chunks)


def decode_answers(blob: bytes, chunks: Sequence[bytes] = ()) -> list[Answer]:
    return WrittenAnswers(blob).answers(chunks)
