"""A reward function of the user's own, by import path: `task.scorer = "module:function"` or `"file.py:function"`.

The function is called by keyword and gets what it asks for by name:

    prompt       text of the prompt
    completion   text of the completion, special tokens left out
    answer       the gold answer, "" where the task has none
    details      what else the task knows: the other columns of a line, the entry of a data set

and returns a number.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ostinato.errors import ConfigError
from ostinato.protocols import Task
from ostinato.tasks.score_pool import Verifier

ARGUMENTS = ("prompt", "completion", "answer", "details")
_VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def load_scorer(path: str) -> Verifier:
    """The function at `module:function` or `file.py:function` as a verifier.

    A module is looked for in the working directory too. Raises `ConfigError` when it cannot be imported, is not a plain
    function of the arguments above, or does not exist.
    """
    where, _, name = path.rpartition(":")
    if not where or not name:
        raise ConfigError(f"task.scorer expects 'module:function' or 'file.py:function', got {path!r}")
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else _from_name(where)
    except ConfigError:
        raise
    except Exception as error:  # what a stranger's module raises while it is imported
        raise ConfigError(f"task.scorer {path!r}: importing {where} raised {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise ConfigError(
            f"task.scorer {path!r}: {where} has no function {name!r}; it has {', '.join(known) or 'none'}"
        )
    return _as_verifier(path, function)


def _from_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise ConfigError(f"task.scorer: {file} is no file (looked for from {Path.cwd()})")
    name = f"ostinato_scorer_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    if spec is None or spec.loader is None:
        raise ConfigError(f"task.scorer: {file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look their module up
    spec.loader.exec_module(module)
    return module


def _from_name(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(name)


def _as_verifier(path: str, function: Callable[..., Any]) -> Verifier:
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"task.scorer {path!r} is a coroutine function, expected a plain one")
    parameters = inspect.signature(function).parameters.values()
    unknown = [
        p.name for p in parameters if p.name not in ARGUMENTS and p.default is p.empty and p.kind not in _VARIADIC
    ]
    if unknown or any(p.kind is p.POSITIONAL_ONLY for p in parameters):
        raise ConfigError(
            f"task.scorer {path!r} must take keywords among {', '.join(ARGUMENTS)}, "
            f"got ({', '.join(map(str, parameters))})"
        )
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    wanted = ARGUMENTS if takes_all else [name for name in ARGUMENTS if name in {p.name for p in parameters}]

    def verify(task: Task, text: str) -> float:
        known = {"prompt": task.prompt, "completion": text, "answer": task.answer, "details": task.details}
        return float(function(**{name: known[name] for name in wanted}))

    return verify
