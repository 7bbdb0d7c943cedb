"""A zygote forks without the C library, which keeps the process's number in a record of its own, at a place
that is not public. An address in that record may look like the number: what was taken for it was overwritten
in every child, and all programs and cells of that zygote died of SIGSEGV."""

import os
from pathlib import Path

import pytest

from rocstar.sandbox.pool import process
from rocstar.sandbox.pool.pool import SandboxPool

LOOKALIKE = """
import ctypes, os, sys
self = ctypes.CDLL(None).pthread_self
self.restype = ctypes.c_void_p
record = (ctypes.c_int * 512).from_address(self())
number = max(i for i in range(256) if record[i] == os.getpid())
sys.lookalike = max(i for i in range(number) if record[i] == 0)  # padding
record[sys.lookalike] = os.getpid()
"""
"""Run by the zygote when it starts: a word before the number's own gets the same value."""

LOOK = """
import ctypes, os, sys
self = ctypes.CDLL(None).pthread_self
self.restype = ctypes.c_void_p
record = (ctypes.c_int * 512).from_address(self())
record[sys.lookalike], os.getpid() in record
"""


async def test_what_looks_like_the_zygotes_number_is_not_overwritten(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(LOOKALIKE)
    paths = [str(tmp_path), process.ENVIRONMENT.get("PYTHONPATH", "")]
    monkeypatch.setitem(process.ENVIRONMENT, "PYTHONPATH", os.pathsep.join(filter(None, paths)))
    async with SandboxPool(without=("namespaces",)) as pool:
        program = await pool.run(LOOK)
        session = await pool.open_session()
        cells = [await session.run(LOOK), await (await session.branch()).run(LOOK)]
        expected = f"({pool.zygotes['stdlib'][-1]}, True)"
    assert [result.value for result in (program, *cells)] == [expected] * 3, (program, cells)
