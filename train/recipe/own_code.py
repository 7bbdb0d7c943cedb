"""Code of a recipe's author: "module:Name", found beside the recipe or on sys.path.

    recipe -- paths.code_at: beside the recipe, or nowhere --> "/folder/module.py:Name" -- load --> the object
                             on sys.path --------------------> "module:Name" --------------^

The path is written out when the recipe is read, so a run's config.toml finds the code from anywhere.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.paths import code_at


def load(spec: str, *, field: str, folder: Path | None = None) -> Any:
    """Import and return the object that `spec` names.

    Args:
        spec: "module:Name", or "file.py:Name".
        field: the recipe's field, for errors.
        folder: searched for the module's file before sys.path.

    Raises:
        ConfigError: there is no such module or name, or the module cannot be imported.
    """
    spec = code_at(spec, folder) if folder is not None else spec
    setting = f"{field} = {spec!r}"
    place, _, name = spec.rpartition(":")
    if not place or not name.isidentifier():
        raise ConfigError(f"{setting}: write it as 'module:Name'")
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except FileNotFoundError:
        raise ConfigError(
            f"{setting}: the file {place!r} does not exist, and sys.path has no module {Path(place).stem!r}; "
            "modules are searched beside the recipe that names them, or in the current directory if the "
            "command line does"
        ) from None
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{setting}: there is no module {place!r} on sys.path; put its folder into PYTHONPATH, or "
                "write FILE.py:Name"
            ) from None
        raise ConfigError(f"{setting}: it needs a module {error.name!r} that is not installed") from None
    except (Exception, SystemExit) as error:  # user code runs at its import
        raise ConfigError(f"{setting}: importing it failed: {described(error)}") from error
    if not hasattr(module, name):
        own = [
            key
            for key, value in vars(module).items()
            if getattr(value, "__module__", None) == module.__name__ and not key.startswith("_")
        ]
        has = f"it defines {', '.join(sorted(own))}" if own else "it defines nothing"
        raise ConfigError(f"{setting}: the module has no {name!r}; {has}")
    return getattr(module, name)


def load_function(spec: str, *, field: str) -> Any:
    """Import and return the function that `spec` names. ConfigError: see `load`, or it is not a function."""
    found = load(spec, field=field)
    if not callable(found) or inspect.isclass(found):
        raise ConfigError(f"{field} = {spec!r} is {type(found).__name__}, not a function; name one")
    return found


def load_plain(spec: str, *, field: str, takes: Sequence[str]) -> Any:
    """Import and return the function that `spec` names, which is called with so many arguments and not awaited.

    ConfigError: see `load_function`, it takes others than `takes` says, or is a coroutine function.
    """
    found = load_function(spec, field=field)
    if inspect.iscoroutinefunction(found):
        raise ConfigError(f"{field} = {spec!r} is a coroutine function, which nothing awaits; define it with `def`")
    try:
        inspect.signature(found).bind(*takes)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{field} = {spec!r} cannot be called with {' and '.join(takes)}: {error}") from None
    return found


def make(spec: str, args: dict[str, Any], base: type, *, field: str) -> Any:
    """Return an object of the class that `spec` names, made with `args`.

    Raises:
        ConfigError: there is no such class, it is no subclass of `base`, or it cannot be made with `args`.
    """
    found, setting = load(spec, field=field), f"{field} = {spec!r}"
    if not (inspect.isclass(found) and base in inspect.getmro(found)):
        raise ConfigError(f"{setting}: it is no subclass of {base.__module__}.{base.__qualname__}")
    if missing := getattr(found, "__abstractmethods__", None):
        raise ConfigError(f"{setting}: the class does not define {', '.join(sorted(missing))}")
    try:
        inspect.signature(found).bind(**args)
    except TypeError as error:
        problem = f"args = {args!r} do not fit: {error}; it takes {inspect.signature(found)}"
        raise ConfigError(f"{setting}: {problem}") from None
    try:
        return found(**args)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from None
    except Exception as error:  # user code
        raise ConfigError(f"{setting}: args = {args!r}: {described(error)}") from error


def described(error: BaseException) -> str:
    """An exception of such code in one line: type, message, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _from_file(path: Path) -> ModuleType:
    """The module of a file, imported once. Its neighbours can be imported by it."""
    path = path.absolute()
    if not path.is_file():
        raise FileNotFoundError(path)
    known = sys.modules.get(path.stem)
    is_it = known is not None and getattr(known, "__file__", None) == str(path)
    if known is not None and is_it:
        return known
    name = path.stem
    if known is not None or importlib.util.find_spec(name) is not None:  # of another file
        name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
        if name in sys.modules:
            return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except BaseException:  # whatever the user's module raises: half of it must not be found again
        del sys.modules[name]
        raise
    return module
