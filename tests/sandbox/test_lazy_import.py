"""A package that is put off is imported by the first use of it, and by nothing else."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocstar.sandbox.child.lazy_import import install_lazy_import

NAME = "a_slow_package"


@pytest.fixture(autouse=True)
def slow_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "__init__.py").write_text("value = 42\n")
    (tmp_path / NAME / "part.py").write_text("value = 43\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


def was_run() -> bool:
    return "value" in vars(sys.modules[NAME])


def imported(name: str = NAME) -> Any:
    return importlib.import_module(name)


def test_the_first_use_imports_and_no_import_does() -> None:
    install_lazy_import(NAME)
    first, second = imported(), imported()
    assert importlib.util.find_spec(NAME) is not None and not hasattr(first, "__file__")
    inspect.getmodule(inspect.currentframe())
    assert not was_run()
    assert (first.value, second.value) == (42, 42)
    assert was_run() and imported() is not first and imported().__file__


def test_a_name_of_it_or_a_module_in_it_is_a_use() -> None:
    install_lazy_import(NAME)
    assert imported(f"{NAME}.part").value == 43 and was_run()
    with pytest.raises(AttributeError, match="nothing"):
        _ = imported().nothing


def test_what_is_there_or_missing_is_left_alone() -> None:
    there = imported()
    install_lazy_import(NAME)
    assert imported() is there
    install_lazy_import("no_such_package")
    with pytest.raises(ModuleNotFoundError):
        imported("no_such_package")


@pytest.mark.parametrize("package", ["rocstar.sandbox", "rocstar.sandbox.fabric", "rocstar.train"])
def test_a_package_has_its_names_and_no_others(package: str) -> None:
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module)) and all(hasattr(module, name) for name in module.__all__)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = module.nothing
