"""The rules of the house: where a line may live, what leaves the door, how long a thing may get.

Every rule is a function from text to a list of complaints, so that each is shown to complain about a bad
sample before it is trusted to be silent about the tree.
"""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

import paceline
import paceline_lab
from paceline.context import Context
from paceline.drafters import Drafter
from paceline.law import Sampling
from paceline.law.table import table
from paceline.planning.base import Planner
from paceline.targets.base import Target

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"

# Top to bottom: a room imports only itself and rooms before it.
PACKAGES = {
    "paceline": (
        *(
            "errors",
            "files",
            "compiled",
            "launching",
            "once",
            "recent",
            "vocabulary",
            "grammar",
            "translate",
            "law",
            "context",
        ),
        *("tree", "verify", "dictionary", "targets", "drafters", "planning", "engine", "api", "testing"),
        *("integrations", "cli"),
    ),
    "paceline_lab": ("check", "bench", "machine", "measure", "demo", "commands"),
    "paceline_make": ("states", "cluster", "cards", "texts", "dictionary", "heads", "models", "commands"),
}
ORDER = [f"{package}.{room}" for package, rooms in PACKAGES.items() for room in rooms]
DOOR = "__init__"
OUTSIDE_THE_ORDER = frozenset({DOOR, "__main__"})
NOT_CODE = frozenset({"py.typed", "__pycache__"})

# What users may rely on. A name joins or leaves this list on purpose, never by the way.
EXPORTS = [
    "Ask",
    "Budget",
    "CallbackError",
    "Context",
    "Conversation",
    "Counter",
    "DefectError",
    "Distribution",
    "DraftTree",
    "Drafter",
    "DrafterError",
    "DrafterWarning",
    "Generation",
    "Grammar",
    "InputError",
    "LanguageModel",
    "Observed",
    "Options",
    "PacelineError",
    "Piece",
    "Sampling",
    "Scores",
    "Seen",
    "Settings",
    "TableTarget",
    "TextBatch",
    "UnsupportedModel",
    "Want",
    "Writing",
    "custom_generate",
    "load",
]

ROOMS_OF_SOFTMAX = frozenset({"paceline.law", "paceline_make.heads", "paceline_make.models"})
SOFTMAX_NAMES = frozenset({"softmax", "log_softmax", "logsumexp", "Softmax", "LogSoftmax"})
SOFTMAX_ELSEWHERE = {
    "paceline/targets/hf/attention.py": "attention weights: a softmax over keys, not over the vocabulary",
}

HEAVY = ("torch", "transformers", "numpy", "scipy", "rich", "pandas", "matplotlib", "jinja2")
IMPORT_SECONDS = 0.5
FILE_LINES = 400
FUNCTION_LINES = 80

MAP_HEADING = "## The house"
MACHINE_WORDS = re.compile(
    r"(?<![\w.~])/(?:work|tmp|root|home|opt)/|pypi\.org|pythonhosted\.org|download\.pytorch\.org"
)
SPOKEN_PLACES = (
    *(
        "src",
        "tools",
        "papers",
        "docs",
        "examples",
        ".ci",
        ".github",
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "Makefile",
    ),
    *("pyproject.toml", "constraints.txt"),
)


def source_files() -> list[Path]:
    files = sorted(SRC.rglob("*.py"))
    assert len(files) > 1, f"no rooms found under {SRC}"
    return files


def room_of(path: Path) -> str:
    """`paceline/law/noise.py` and `paceline/law.py` both belong to the room `paceline.law`."""
    return ".".join(path.parts[:2]).removesuffix(".py")


def complaints_of_tree(rule: Callable[[Path, str], list[str]]) -> list[str]:
    return [c for f in source_files() for c in rule(f.relative_to(SRC), f.read_text(encoding="utf8"))]


def of_package(path: str) -> Path:
    return Path(os.path.normpath(Path("paceline") / path))


# --- (a) imports point upwards ------------------------------------------------------------------------------


def unknown_rooms(package: str, names: list[str]) -> list[str]:
    known = {*PACKAGES[package], *OUTSIDE_THE_ORDER, *NOT_CODE}
    return [f"{name} is no room of {package}" for name in names if name.removesuffix(".py") not in known]


def imported_names(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """Every dotted name a file imports, absolute, wherever in the file the import stands."""
    package = path.parent.parts
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *filter(None, [node.module])))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and called_name(node) in {"import_module", "__import__"}:
            constants = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
            yield from ((node.lineno, name) for name in constants if isinstance(name, str))


def called_name(call: ast.Call) -> str:
    return getattr(call.func, "attr", None) or getattr(call.func, "id", "")


def place_of(room: str) -> tuple[int, int]:
    """Of a room in the order; a package's own names are those of its door, which stands above its rooms."""
    package = room.partition(".")[0]
    return list(PACKAGES).index(package), ORDER.index(room) if room in ORDER else -1


def misdirected_imports(path: Path, source: str) -> list[str]:
    room = room_of(path)
    if room.partition(".")[2] in OUTSIDE_THE_ORDER:
        return []
    complaints, own = [], path.parts[0]
    for line, name in imported_names(path, source):
        package, _, rest = name.partition(".")
        if package not in PACKAGES or rest == "__version__":
            continue
        wanted = f"{package}.{rest.split('.')[0]}"
        if package == own and wanted not in ORDER:
            complaints.append(f"{path}:{line} fetches {name} through the front door, not from its room")
        elif place_of(wanted) > place_of(room):
            complaints.append(f"{path}:{line} {room} imports {wanted}, which is below it")
    return complaints


@pytest.mark.parametrize("package", PACKAGES)
def test_every_top_level_name_is_a_room(package: str) -> None:
    assert unknown_rooms(package, [entry.name for entry in (SRC / package).iterdir()]) == []


def test_a_utility_drawer_is_no_room() -> None:
    names = ["utils.py", "law", "tree.py", "__init__.py"]
    assert unknown_rooms("paceline", names) == ["utils.py is no room of paceline"]


def test_imports_point_upwards() -> None:
    assert complaints_of_tree(misdirected_imports) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("tree.py", "import paceline.verify"),
        ("tree.py", "from paceline.verify import judge"),
        ("tree.py", "from paceline import verify"),
        ("tree.py", "from . import verify"),
        ("tree.py", "from .verify import judge"),
        ("law/noise.py", "from ..tree import DraftTree"),
        ("law/noise.py", "def f():\n    from paceline.cli import main"),
        ("law/noise.py", "if TYPE_CHECKING:\n    from paceline.tree import DraftTree"),
        ("tree.py", "importlib.import_module('paceline.engine.serial')"),
        ("engine/serial.py", "from paceline import load"),
        ("engine/serial.py", "import paceline"),
        ("cli/generate.py", "from paceline_lab.demo import shown"),
        ("cli/generate.py", "import paceline_make.dictionary.build"),
        ("cli/generate.py", "from paceline_lab import Summary"),
        ("../paceline_lab/bench/race.py", "from paceline_make.heads.run import Workshop"),
        ("../paceline_lab/check/run.py", "from paceline_lab.bench.race import Race"),
    ],
)
def test_a_downward_import_is_seen(path: str, source: str) -> None:
    assert len(misdirected_imports(of_package(path), source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("verify.py", "from paceline.tree import DraftTree\nfrom .law import law"),
        ("targets/hf/model.py", "from .cache import Cache\nfrom ..base import Target\nfrom ...law import x"),
        ("integrations/openai.py", "from paceline import __version__\nimport torch"),
        ("__init__.py", "from paceline.cli import main"),
        ("../paceline_lab/bench/race.py", "import paceline\nfrom paceline import load"),
        ("../paceline_make/heads/run.py", "from paceline.law import Law\nfrom paceline_lab.bench.race import Race"),
    ],
)
def test_an_upward_import_is_allowed(path: str, source: str) -> None:
    assert misdirected_imports(of_package(path), source) == []


PAPERS = ROOT / "papers"
PUBLIC = ("__future__", "paceline", "paceline_lab", "papers")


def private_imports(path: Path, source: str) -> list[str]:
    """What scripts of papers take from within the packages, past their doors."""
    found = (
        (node.lineno, name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or "."] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
    )
    return [f"{path}:{n} imports {name}" for n, name in found if name.startswith("paceline") and name not in PUBLIC]


def test_scripts_of_papers_use_what_users_have() -> None:
    files = sorted(PAPERS.rglob("*.py"))
    assert files
    assert [c for f in files for c in private_imports(f.relative_to(ROOT), f.read_text(encoding="utf8"))] == []
    assert len(private_imports(Path("a.py"), "from paceline_lab.bench.run.desk import Plan\nimport paceline.law")) == 2


def test_what_scripts_of_papers_may_use_resolves() -> None:
    assert [name for name in paceline_lab.__all__ if getattr(paceline_lab, name, None) is None] == []


def test_every_item_of_papers_is_listed_and_every_table_and_figure_has_its_line() -> None:
    readme = (PAPERS / "README.md").read_text(encoding="utf8")
    lines = [line for line in readme.splitlines() if re.match(r"\| (Table|Figure) \d+ \|", line)]
    assert len(lines) == 67
    folders = [file.parent.name for file in PAPERS.glob("*/__main__.py") if file.parent.name != "device"]
    assert len(folders) == 5
    made = {f"{name} {one.name}" for name in folders for one in import_module(f"papers.{name}.__main__").ITEMS}
    named = set(re.findall(rf"`((?:{'|'.join(folders)}) \w+)", readme))
    assert named - made == set()
    assert made - named - {"dictspec proposing"} == {"mirror law"} - named, "each has its line"


# --- (b) what leaves the door, (d) how fast it opens -------------------------------------------------------


def test_exports_are_frozen_and_resolve() -> None:
    assert sorted(paceline.__all__) == sorted(EXPORTS)
    assert [name for name in paceline.__all__ if getattr(paceline, name, None) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = paceline.no_such_name


def fresh_import(statement: str) -> tuple[float, list[str]]:
    """Seconds for a statement in a fresh interpreter, and which heavy packages it left loaded."""
    program = (
        "import json, sys, time\n"
        "start = time.perf_counter()\n"
        f"{statement}\n"
        "seconds = time.perf_counter() - start\n"
        f"print(json.dumps([seconds, [m for m in {HEAVY!r} if m in sys.modules]]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    seconds, loaded = json.loads(done.stdout)
    return seconds, loaded


def test_the_door_opens_fast_and_brings_nothing_heavy() -> None:
    for _ in range(10):  # on a busy machine some are slow
        seconds, loaded = fresh_import("import paceline")
        assert loaded == []
        if seconds < IMPORT_SECONDS:
            break
    assert seconds < IMPORT_SECONDS


def test_a_heavy_import_would_be_seen() -> None:
    assert fresh_import("import paceline, numpy")[1] == ["numpy"]
    assert fresh_import("import paceline; time.sleep(0.2)")[0] >= 0.2


EXTRAS = ("duckdb", "pyarrow", "ray", "datasets", "pandas", "matplotlib", "llguidance", "llama_cpp", "mlx", "mlx_lm")
MATCHING = re.compile(r"^\s*(?:import|from) llguidance\b", re.MULTILINE)
READING = re.compile(r"^\s*(?:import|from) (?:pandas|matplotlib)\b", re.MULTILINE)


def test_only_bench_reads_with_the_packages_of_its_extra() -> None:
    readers = {room_of(file.relative_to(SRC)) for file in source_files() if READING.search(file.read_text("utf8"))}
    assert readers == {"paceline_lab.bench"}


def test_one_file_imports_the_library_of_grammars() -> None:
    importing = [file for file in source_files() if MATCHING.search(file.read_text("utf8"))]
    assert [file.relative_to(SRC).as_posix() for file in importing] == ["paceline/grammar/llguidance.py"]


def test_drafting_needs_no_package_of_an_extra() -> None:
    absent = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))"
    drafting = "from paceline.drafters import make_drafter; make_drafter('auto'); make_drafter('dictionary')"
    commands = "from paceline.cli import parser; parser()"
    done = subprocess.run(
        [sys.executable, "-c", f"{absent}; {drafting}; {commands}"],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


TORCH_FREE = ("law", "context", "tree", "verify", "dictionary", "drafters", "planning", "engine", "api")
TARGETS = (
    "base",
    "chains",
    "foremost",
    "forked",
    "identity",
    "lending",
    "memory",
    "probing",
    "reading",
    "replay",
    "scores",
    "setup",
    "table",
    "threads",
)
"""What targets of all kinds have, and those that compute nothing."""
WITH_TORCH = {
    "law": ("contenders", "device_rows", "draws", "kernel_rows", "on_device", "racing", "side_by_side"),
    "drafters.networks": (
        "checkpoint",
        "compiled",
        "compiled_search",
        "fitting",
        "layers",
        "marginals",
        "residual",
        "rotary",
        "search",
        "settings",
        "state_rows",
        "token_tables",
    ),
    "drafters.networks.block": ("checkpoint", "fitting", "head", "network", "shape", "ties"),
    "drafters.networks.eagle": ("checkpoint", "fitting", "head", "model", "names"),
    "drafters.networks.hydra": ("checkpoint", "fitting", "head", "prefix", "rows"),
    "drafters.networks.medusa": ("checkpoint", "fitting", "head", "network"),
    "drafters.networks.redrafter": ("checkpoint", "fitting", "head"),
    "drafters.networks.streaming": ("adapter", "checkpoint", "fitting"),
}
"""The law's half for rows of torch, and networks: loaded where a text needs them."""


def test_what_writes_texts_needs_no_torch_itself() -> None:
    """Models of other libraries stand beside torch's."""
    files = [file for room in TORCH_FREE for file in (SRC / "paceline").glob(f"{room}.py")]
    files += [file for room in TORCH_FREE for file in (SRC / "paceline" / room).rglob("*.py")]
    files += [SRC / "paceline" / "targets" / f"{name}.py" for name in TARGETS]
    named = {".".join(file.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__") for file in files}
    with_torch = {f"paceline.{room}.{name}" for room, names in WITH_TORCH.items() for name in names}
    assert with_torch <= named
    program = (
        "import importlib, sys\nsys.modules['torch'] = None\n"
        f"for name in {sorted(named - with_torch)!r}: importlib.import_module(name)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


# --- (c) logits become probabilities in one place ----------------------------------------------------------


def stray_softmax(path: Path, source: str) -> list[str]:
    """Mentions, not only calls: `partial(torch.softmax, dim=-1)` and `import softmax as s` count too."""
    if room_of(path) in ROOMS_OF_SOFTMAX or path.as_posix() in SOFTMAX_ELSEWHERE:
        return []
    return [
        f"{path}:{node.lineno} says {name}; probabilities over the vocabulary come from law"
        for node in ast.walk(ast.parse(source))
        for name in mentioned_names(node)
        if name in SOFTMAX_NAMES
    ]


def mentioned_names(node: ast.AST) -> list[str]:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return [name]
        case ast.ImportFrom(names=aliases):
            return [alias.name for alias in aliases]
    return []


def test_softmax_lives_in_law() -> None:
    assert complaints_of_tree(stray_softmax) == []


@pytest.mark.parametrize(
    "source",
    [
        "p = torch.softmax(logits, -1)",
        "p = logits.log_softmax(-1)",
        "z = F.logsumexp(logits, -1)",
        "head = nn.Softmax(dim=-1)",
        "warp = partial(F.softmax, dim=-1)",
        "from torch.nn.functional import softmax as s",
        "p = getattr(x, 'y')(softmax)",
    ],
)
def test_a_stray_softmax_is_seen(source: str) -> None:
    assert len(stray_softmax(Path("paceline/engine/serial.py"), source)) == 1
    assert stray_softmax(Path("paceline/law/warp.py"), source) == []
    assert stray_softmax(Path("paceline_make/heads/loss.py"), source) == []
    assert stray_softmax(Path("paceline/targets/hf/attention.py"), source) == []


# --- (e) length --------------------------------------------------------------------------------------------


def too_long(path: Path, source: str) -> list[str]:
    lines = len(source.splitlines())
    complaints = [f"{path} has {lines} lines, over {FILE_LINES}"] if lines > FILE_LINES else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > FUNCTION_LINES:
                complaints.append(f"{path}:{node.lineno} {node.name} has {size} lines, over {FUNCTION_LINES}")
    return complaints


def test_nothing_is_longer_than_one_sitting() -> None:
    assert complaints_of_tree(too_long) == []


def test_a_long_file_and_a_long_function_are_seen() -> None:
    body = "    x = 1\n"
    path = Path("tree.py")
    assert too_long(path, "def f():\n" + body * (FUNCTION_LINES - 1)) == []
    assert len(too_long(path, "class C:\n  async def f():\n" + body * FUNCTION_LINES)) == 1
    assert too_long(path, "x = 1\n" * FILE_LINES) == []
    assert len(too_long(path, "x = 1\n" * (FILE_LINES + 1))) == 1


ROOM_LINES = {
    "paceline": {
        "errors": 170,
        "files": 1000,
        "compiled": 100,
        "launching": 50,
        "once": 50,
        "recent": 50,
        "vocabulary": 1100,
        "grammar": 530,
        "translate": 700,
        "law": 2760,
        "context": 310,
        "tree": 450,
        "verify": 200,
        "dictionary": 900,
        "targets": 23800,
        "drafters": 16700,
        "planning": 2770,
        "engine": 1960,
        "api": 2800,
        "testing": 300,
        "integrations": 6510,
        "cli": 2400,
    },
    "paceline_lab": {
        "check": 1850,
        "bench": 9950,
        "machine": 2100,
        "measure": 100,
        "demo": 200,
        "commands": 2700,
    },
    "paceline_make": {
        "states": 120,
        "cluster": 50,
        "cards": 50,
        "texts": 950,
        "dictionary": 1700,
        "heads": 2920,
        "models": 450,
        "commands": 1640,
    },
}
"""The most lines that a room may have: what there is and a little more. A change that needs more raises its number, so
that a review sees it."""


def over_budget(lines: dict[str, int]) -> list[str]:
    """Rooms with more lines than they may have, and budgets that are too large to bind."""
    budgets = {f"{package}.{room}": most for package, rooms in ROOM_LINES.items() for room, most in rooms.items()}
    return [
        *(f"{room} has {count} lines, over {budgets[room]}" for room, count in lines.items() if count > budgets[room]),
        *(
            f"{room} may have {most} lines and has {lines[room]}"
            for room, most in budgets.items()
            if most > 1.25 * lines[room] + 100
        ),
    ]


def test_no_room_outgrows_its_budget() -> None:
    lines = Counter[str]()
    for file in source_files():
        if (room := room_of(file.relative_to(SRC))) in ORDER:
            lines[room] += len(file.read_text(encoding="utf8").splitlines())
    assert over_budget(lines) == []


def test_a_room_that_outgrows_its_budget_is_seen() -> None:
    lines = {f"{package}.{room}": most for package, rooms in ROOM_LINES.items() for room, most in rooms.items()}
    assert over_budget(lines) == []
    assert len(over_budget(lines | {"paceline.law": lines["paceline.law"] + 1, "paceline_lab.bench": 100})) == 2


def named_twice(sources: dict[str, str]) -> list[str]:
    """Public classes of the same name in two rooms: a reader would take one for the other."""
    homes: dict[str, set[str]] = {}
    for path, source in sources.items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, set()).add(room_of(Path(path)))
    return [f"{name} stands in {' and '.join(sorted(rooms))}" for name, rooms in homes.items() if len(rooms) > 1]


def test_no_class_of_two_rooms_shares_its_name() -> None:
    sources = {str(file.relative_to(SRC)): file.read_text(encoding="utf8") for file in source_files()}
    assert named_twice(sources) == []


def test_a_shared_name_is_seen() -> None:
    one, other = "class Rule: ...", "import x\nclass Rule(x.Y): ...\nclass _Own: ..."
    assert named_twice({"a/verify.py": one, "a/dictionary/rules.py": other}) == [
        "Rule stands in a.dictionary and a.verify"
    ]
    assert named_twice({"a/tree.py": "class _Own: ...", "a/law/b.py": other, "a/law/c.py": one}) == []


# --- (f) the map in CONTRIBUTING.md is the tree -------------------------------------------------------------


def map_entries(page: str) -> list[str]:
    """The rooms that the first code block after the heading lists, each below its package: the first word of each
    unindented line."""
    _, found, after = page.partition(f"\n{MAP_HEADING}\n")
    block = re.search(r"^```[^\n]*\n(.*?)^```", after, re.MULTILINE | re.DOTALL)
    if not found or block is None:
        return []
    entries, package = list[str](), ""
    for line in block.group(1).splitlines():
        if line.startswith("src/"):
            package = line.removeprefix("src/").rstrip("/ ")
        elif line[:1].strip():
            entries.append(f"{package}.{line.split()[0].rstrip('/').removesuffix('.py')}")
    return entries


def map_complaints(page: str, paths: list[str]) -> list[str]:
    outside = NOT_CODE | {f"{name}.py" for name in OUTSIDE_THE_ORDER}
    rooms = {room_of(Path(path)) for path in paths if Path(path).name not in outside}
    listed = Counter(map_entries(page))
    return [
        *(f"{room} is not on the map under '{MAP_HEADING}'" for room in sorted(rooms - set(listed))),
        *(f"the map lists {name}, which does not exist" for name in sorted(set(listed) - rooms)),
        *(f"the map lists {name} {count} times" for name, count in sorted(listed.items()) if count > 1),
    ]


def test_the_map_is_the_tree() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf8")
    assert map_complaints(page, [str(entry.relative_to(SRC)) for entry in SRC.glob("*/*")]) == []


def test_a_drifted_map_is_seen() -> None:
    text = "# x\n\n## The house\n\nwords\n\n```text\nsrc/a/\nlaw/  sampling\n  penalties\ntree  drafts\n```\n"
    assert map_complaints(text, ["a/law", "a/tree.py", "a/py.typed", "a/__init__.py", "a/__pycache__"]) == []
    assert map_complaints(text, ["a/law"]) == ["the map lists a.tree, which does not exist"]
    assert map_complaints(text, ["a/law", "a/tree.py", "a/cli"]) == ["a.cli is not on the map under '## The house'"]
    assert len(map_complaints(text.replace("src/a", "src/b"), ["a/law", "a/tree.py"])) == 4
    assert map_complaints(text.replace("tree ", "law/ "), ["a/law"]) == ["the map lists a.law 2 times"]
    assert len(map_complaints("no map at all", ["a/law", "a/tree.py"])) == 2


# --- (g) the project speaks of itself alone ----------------------------------------------------------------


def machine_words(name: str, text: str) -> list[str]:
    """Paths and hosts that belong to somebody's machine, not to the project."""
    rows = enumerate(text.splitlines(), start=1)
    return [f"{name}:{number} {line.strip()}" for number, line in rows if MACHINE_WORDS.search(line)]


def spoken_texts() -> Iterator[tuple[str, str]]:
    for place in SPOKEN_PLACES:
        here = ROOT / place
        for path in sorted(here.rglob("*")) if here.is_dir() else [here]:
            if path.is_file() and "__pycache__" not in path.parts:
                # Weights and dictionaries decode to noise, which holds no paths.
                yield str(path.relative_to(ROOT)), path.read_bytes().decode("utf8", errors="ignore")


def test_no_machine_is_named() -> None:
    texts = list(spoken_texts())
    assert {"Makefile", "src/paceline/__init__.py"} <= {name for name, _ in texts}
    assert [c for name, text in texts for c in machine_words(name, text)] == []


def test_a_machine_word_is_seen() -> None:
    for bad in ("see /work/notes", "open('/tmp/x')", "/root/.cache", "--index https://pypi.org/simple"):
        assert machine_words("f", f"fine\n{bad}\n") == [f"f:2 {bad}"]
    for good in ("docs/work/flow.md", "https://example.org/home/page", "a/tmp/b", "~/work/models"):
        assert machine_words("f", good) == []


# --- (h) code that a model brings runs only with consent ---------------------------------------------------

LOADERS = frozenset({"from_pretrained", "from_config"})


def open_questions(path: Path, source: str) -> list[str]:
    """Loaders of transformers that are not told whether to run a model's own code: they ask at standard input."""
    nodes = list(ast.walk(ast.parse(source)))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    answered = {id(call.func) for call in calls if any(word.arg == "trust_remote_code" for word in call.keywords)}
    return [
        f"{path}:{node.lineno} {node.attr} leaves trust_remote_code out"
        for node in nodes
        if isinstance(node, ast.Attribute) and node.attr in LOADERS and id(node) not in answered
    ]


def test_no_loader_is_left_to_ask() -> None:
    assert complaints_of_tree(open_questions) == []


def test_a_loader_that_would_ask_is_seen() -> None:
    for bad in ("AutoConfig.from_pretrained(n)", "A.from_config(c, **asked)", "partial(A.from_pretrained, n)"):
        assert len(open_questions(Path("f.py"), bad)) == 1
    assert open_questions(Path("f.py"), "A.from_pretrained(n, trust_remote_code=t, **asked)") == []


# --- (i) sources of docs are as wide as code ---------------------------------------------------------------

LINE = 120
FENCE = "```"


def wide_lines(name: str, text: str) -> list[str]:
    """Lines that an editor would wrap, but for tables, code blocks and the addresses of links."""
    complaints, fenced = [], False
    for number, line in enumerate(text.splitlines(), start=1):
        bare = line.lstrip()
        if bare.startswith(FENCE):
            fenced = not fenced
        elif not fenced and not bare.startswith("|") and len(re.sub(r"\]\([^)]*\)", "]", line)) > LINE:
            complaints.append(f"{name}:{number} has {len(line)} characters, over {LINE}")
    return complaints


def test_sources_of_docs_are_not_wide() -> None:
    folders = (ROOT / "docs").glob("*.md"), (ROOT / "papers").rglob("*.md")
    files = [*ROOT.glob("*.md"), *(file for found in folders for file in sorted(found))]
    assert len(files) > 5
    assert [c for file in files for c in wide_lines(file.name, file.read_text(encoding="utf8"))] == []


def test_a_wide_line_is_seen() -> None:
    word = "word " * 30
    assert wide_lines("f", f"fine\n{word}") == ["f:2 has 150 characters, over 120"]
    for good in (f"| {word} |", f"{FENCE}\n{word}\n{FENCE}", f"a [link](https://{'x' * 150})", "word " * 24):
        assert wide_lines("f", good) == []


# --- (j) no object stands in for another to look on ---------------------------------------------------------

PARTS: tuple[type, ...] = (Context, Drafter, Planner, Target)
NOUNS = {"levels", "reach"}
"""Methods whose names are also those of plain fields elsewhere; of these the type checker tells them apart."""
VERBS = {name for part in PARTS for name, member in vars(part).items() if inspect.isfunction(member)} - NOUNS
IMPOSTOR = "__class__"
REPLACED = re.compile(r"type: ignore\[[^\]]*\bmethod-assign\b")


def stand_ins(path: Path, source: str) -> list[str]:
    """Methods of another object that are replaced, and classes that give themselves out as others. Who wants to watch
    a text gives it an observer."""
    rows = enumerate(source.splitlines(), start=1)
    complaints = [f"{path}:{number} replaces a method" for number, row in rows if REPLACED.search(row)]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(ctx=ast.Store(), value=owner, attr=verb) if verb in VERBS and not is_self(owner):
                complaints.append(f"{path}:{node.lineno} replaces {verb}")
            case ast.Call(func=ast.Name("setattr"), args=[owner, ast.Constant(str(verb)), _]) if verb in VERBS:
                complaints.append(f"{path}:{node.lineno} replaces {verb}")
            case ast.Subscript(ctx=ast.Store(), value=owner, slice=ast.Constant(str(verb))) if verb in VERBS:
                if re.match(r"vars\(.*\)$|.*\.__dict__$", ast.unparse(owner)):
                    complaints.append(f"{path}:{node.lineno} replaces {verb}")
            case ast.FunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()) if name == IMPOSTOR:
                complaints.append(f"{path}:{node.lineno} gives itself out as another class")
    return complaints


def is_self(owner: ast.expr) -> bool:
    return isinstance(owner, ast.Name) and owner.id == "self"


def test_no_object_stands_in_for_another() -> None:
    assert complaints_of_tree(stand_ins) == []
    papers = sorted(PAPERS.rglob("*.py"))
    assert [c for f in papers for c in stand_ins(f.relative_to(ROOT), f.read_text(encoding="utf8"))] == []


@pytest.mark.parametrize(
    "source",
    [
        "planner.review = noted",
        "drafter.open, drafter.close = begin, end",
        "self._inner.submit: Any = noted",
        "setattr(context, 'commit', noted)",
        "vars(target)['submit'] = noted",
        "target.__dict__['submit'] = noted",
        "thing.unknown = noted  # type: ignore[method-assign]",
        "thing.unknown = noted  # type: ignore[assignment, method-assign]",
        "class A:\n    @property\n    def __class__(self) -> type:\n        return B",
        "class A:\n    __class__ = property(of)",
    ],
)
def test_a_stand_in_is_seen(source: str) -> None:
    assert len(stand_ins(Path("bench/measure.py"), source)) == (source.count("drafter.") or 1)


def test_what_is_no_stand_in_is_let_pass() -> None:
    for good in (
        "self.close = finalize(self, end)",
        "each.review(outcomes)",
        "of = part.__class__",
        "found['cut'] = f",
    ):
        assert stand_ins(Path("f.py"), good) == []


# --- (l) who reads a clock ----------------------------------------------------------------------------------

CLOCKS = {
    "once": "seconds of what is done once, which no round pays for",
    "files": "locks are waited for, and old files found",
    "dictionary/index.py": "old files are found",
    "drafters/suffix.py": "a store is saved every so often",
    "drafters/trials.py": "the date of a trial: another one is due a long time later",
    "drafters/networks/streaming/counts.py": "trials of numbers of streams, with each of which drafts are the same",
    "drafters/networks/mirror": "another process is waited for, and times its own forwards",
    "targets/hf/compiled.py": "what is quicker here is chosen at load",
    "targets/hf/speed.py": "what is quicker here is chosen at load",
    "targets/hf/integers/kernels.py": "what is quicker here is chosen at load",
    "planning/probed.py": "the probe",
    "engine/calls.py": "what drivers share",
    "engine/serial.py": "a driver",
    "engine/batch.py": "a driver",
    "engine/served.py": "a driver",
    "integrations/server": "a server, whose answers say how long they took",
    "integrations/vllm": "a host, whose rounds it times",
    "integrations/transformers": "a host, whose rounds it times",
    "cli": "a command's own seconds",
}
"""Rooms and files of `paceline` that may ask for the time, and what for. A round, a plan and a text must not depend on
it in any other way."""


def stray_clocks(path: Path, source: str) -> list[str]:
    within = Path(*path.parts[1:]).as_posix()
    if path.parts[0] != "paceline" or any(
        f"{within.removesuffix('.py')}/".startswith(f"{place.removesuffix('.py')}/") for place in CLOCKS
    ):
        return []
    return [
        f"{path}:{line} reads a clock"
        for line, name in imported_names(path, source)
        if name.partition(".")[0] in {"time", "timeit"}
    ]


def test_only_drivers_hosts_and_the_probe_read_a_clock() -> None:
    assert complaints_of_tree(stray_clocks) == []
    for place in CLOCKS:
        assert (SRC / "paceline" / place).exists() or (SRC / "paceline" / f"{place}.py").exists(), place


@pytest.mark.parametrize("source", ["import time", "from time import monotonic", "def f():\n    import timeit"])
def test_a_stray_clock_is_seen(source: str) -> None:
    assert len(stray_clocks(Path("paceline/engine/loop.py"), source)) == 1
    assert stray_clocks(Path("paceline/engine/serial.py"), source) == []
    assert stray_clocks(Path("paceline/drafters/networks/mirror/place.py"), source) == []
    assert stray_clocks(Path("paceline_lab/bench/race.py"), source) == []


# --- (k) a setting of sampling is named in one file ---------------------------------------------------------

SETTINGS = frozenset(
    {
        *("top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
        *("logit_bias", "banned"),
    }
)
TABLE = "paceline/law/settings.py"


def named_settings(path: Path, source: str) -> list[str]:
    """Mentions of a setting by name. `temperature` and `seed` are read by name in many rooms: every law has them."""
    if path.as_posix() == TABLE:
        return []
    return [
        f"{path}:{getattr(node, 'lineno', '?')} says {name}; go through the rows of {TABLE}"
        for node in ast.walk(ast.parse(source))
        for name in (*mentioned_names(node), *said_names(node))
        if name in SETTINGS
    ]


def said_names(node: ast.AST) -> list[str]:
    match node:
        case ast.keyword(arg=str(name)) | ast.arg(arg=name) | ast.Constant(value=str(name)):
            return [name]
    return []


def test_a_setting_of_sampling_is_named_in_its_table() -> None:
    assert {row.name for row in table(Sampling)} >= SETTINGS
    assert complaints_of_tree(named_settings) == []


@pytest.mark.parametrize(
    "source",
    [
        "if sampling.top_p < 1: pass",
        "Sampling(temperature=0.8, min_p=0.05)",
        "replace(sampling, banned=())",
        "getattr(sampling, 'top_k')",
        "names = ('temperature', 'logit_bias')",
        "def warped(row, top_k): ...",
        "presence_penalty = 0.5",
    ],
)
def test_a_setting_that_is_named_elsewhere_is_seen(source: str) -> None:
    assert len(named_settings(Path("engine/calls.py"), source)) == 1
    assert named_settings(Path(TABLE), source) == []
    assert named_settings(Path("engine/calls.py"), "counts.read_top_k(min_probability, temperature=1, seed=2)") == []
