"""The house stands: imports point down, rooms are small, the ground floor is light, the face is documented."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "ostinato"

FLOORS = [
    {
        "errors",
        "ragged",
        "assembly",
        "rollouts",
        "rollout_arrays",
        "protocols",
        "staleness",
        "config",
        "recipe",
        "telemetry",
        "interrupt",
        "setting_checks",
    },
    {
        "advantages",
        "buffer",
        "rollout_files",
        "theory",
        "stats",
        "evaluation",
        "tasks",
        "governors",
        "usable",
        "shares",
        "loss_advantages",
    },
    {"losses", "batching", "tensors", "logprobs", "packing"},
    {"loop", "sharing"},
    {"backends", "cluster", "integrations", "report", "simulation", "trackers"},
    {"cli"},
    {"__main__"},
]
FLOOR_OF = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
MAY_IMPORT = {
    # room: third-party packages it may import at the top of a file, besides numpy
    "buffer": {"numba", "llvmlite"},  # in `compiled`, which `kernels` imports where numba is installed
    "losses": {"torch"},
    "batching": {"torch"},
    "tensors": {"torch"},
    "logprobs": {"torch"},
    "packing": {"torch"},
    "backends": {"torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "vllm"},
    "integrations": {"torch", "transformers", "accelerate", "safetensors", "huggingface_hub", "trl"},
    "cluster": {"ray"},
    "report": set(),
}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path, *, top_only: bool) -> set[str]:
    """Dotted names imported by a file; `top_only`: at module level."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(tree.body) if top_only else list(ast.walk(tree))
    for guard in [node for node in nodes if isinstance(node, ast.Try)]:
        nodes += guard.body
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_rooms_when_listed_all_stand_on_a_floor() -> None:
    rooms = {room_of(path) for path in FILES} - {"__init__"}
    assert rooms == set(FLOOR_OF)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_when_read_point_down(path) -> None:
    room = room_of(path)
    if room == "__init__":
        return
    for name in imports(path, top_only=False):
        parts = name.split(".")
        if parts[0] == "ostinato" and len(parts) > 1 and parts[1] != room:
            assert FLOOR_OF[parts[1]] < FLOOR_OF[room] or (FLOOR_OF[parts[1]], FLOOR_OF[room]) <= (1, 1), name


def test_rooms_of_one_floor_when_they_import_each_other_form_no_circle() -> None:
    edges = {room: set() for room in FLOOR_OF}
    for path in FILES:
        if room_of(path) in edges:
            edges[room_of(path)] |= {
                n.split(".")[1] for n in imports(path, top_only=False) if n.startswith("ostinato.")
            }
    edges = {room: (to & set(FLOOR_OF)) - {room} for room, to in edges.items()}
    while edges:
        free = {room for room, to in edges.items() if not to & set(edges)}
        assert free, f"a circle among {sorted(edges)}"
        edges = {room: to for room, to in edges.items() if room not in free}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_third_party_imports_when_at_the_top_are_what_the_room_may_have(path) -> None:
    third_party = {name.split(".")[0] for name in imports(path, top_only=True)} - set(sys.stdlib_module_names)
    assert third_party - {"ostinato", "numpy"} <= MAY_IMPORT.get(room_of(path), set())


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_and_functions_when_measured_are_small(path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, node.name


def test_randomness_when_used_is_never_global() -> None:
    for path in FILES:
        names = imports(path, top_only=False)
        assert not any(name == "random" or name.startswith("random.") for name in names), path
        assert "manual_seed(" not in path.read_text(encoding="utf-8").replace(".manual_seed(", ""), path


def test_import_when_torch_is_blocked_works_and_stays_light() -> None:
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'torch', 'transformers', 'matplotlib', 'rich', 'jinja2', 'scipy'}:\n"
        "            raise ModuleNotFoundError('blocked ' + name, name=name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import ostinato, ostinato.buffer, ostinato.theory, ostinato.stats, ostinato.evaluation, ostinato.tasks\n"
        "import ostinato.loop, ostinato.backends.toy, ostinato.cli, ostinato.recipe, ostinato.advantages\n"
        "import numpy as np\n"
        "from ostinato import Rollouts, paper_fifo\n"
        "b = paper_fifo(8); b.add(Rollouts.from_completions([[1]] * 4, [[2]] * 4, [[-0.5]] * 4), train_step=0)\n"
        "print(len(b.sample(4, train_step=1, rng=np.random.default_rng(0))))\n"
        "try:\n"
        "    import ostinato.losses\n"
        "except ImportError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "4"
    assert "pip install 'ostinato[hf]'" in done.stdout


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".buffer",
        ".theory",
        ".stats",
        ".evaluation",
        ".tasks",
        ".losses",
        ".loop",
        ".cluster",
        ".report",
        ".governors",
        ".advantages",
        ".trackers",
    ],
)
def test_face_when_listed_is_sorted_and_documented(name) -> None:
    module = importlib.import_module("ostinato" + name)
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for public in module.__all__:
        assert (getattr(module, public).__doc__ or "").strip(), public


def test_rooms_when_entered_have_a_readme() -> None:
    for room in PACKAGE.iterdir():
        if room.is_dir() and not room.name.startswith("__"):
            assert (room / "README.md").exists(), room.name
