"""The rules of the house: where a line may live, what leaves the door, how long a thing may get.

Every rule is a function from text to a list of complaints, so that each is shown to complain about a bad
sample before it is trusted to be silent about the tree.
"""

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import paceline
import paceline.bench
from paceline.law import Sampling
from paceline.law.table import table

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "paceline"

# Top to bottom: a room imports only itself and rooms before it.
ROOMS = (
    *(
        "errors",
        "files",
        "compiled",
        "launching",
        "once",
        "recent",
        "cluster",
        "vocabulary",
        "translate",
        "law",
        "context",
        "beams",
        "tree",
        "verify",
        "dictionary",
        "targets",
    ),
    *("drafters", "planning", "engine", "api", "integrations", "check", "testing", "bench", "train", "cli"),
)
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
    "DefectError",
    "Distribution",
    "DraftTree",
    "Drafter",
    "DrafterError",
    "DrafterWarning",
    "Generation",
    "InputError",
    "LanguageModel",
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

ROOMS_OF_SOFTMAX = frozenset({"law", "train"})
SOFTMAX_NAMES = frozenset({"softmax", "log_softmax", "logsumexp", "Softmax", "LogSoftmax"})
SOFTMAX_ELSEWHERE = {
    "targets/hf/attention.py": "attention weights: a softmax over keys, not over the vocabulary",
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
    """`law/noise.py` and `law.py` both belong to the room `law`; paths are relative to the package."""
    return path.parts[0].removesuffix(".py")


def complaints_of_tree(rule: Callable[[Path, str], list[str]]) -> list[str]:
    return [c for f in source_files() for c in rule(f.relative_to(SRC), f.read_text(encoding="utf8"))]


# --- (a) imports point upwards ------------------------------------------------------------------------------


def unknown_rooms(names: list[str]) -> list[str]:
    known = {*ROOMS, *OUTSIDE_THE_ORDER, *NOT_CODE}
    return [f"{name} is no room of the house" for name in names if name.removesuffix(".py") not in known]


def imported_names(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """Every dotted name a file imports, absolute, wherever in the file the import stands."""
    package = ("paceline", *path.parent.parts)
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


def misdirected_imports(path: Path, source: str) -> list[str]:
    room = room_of(path)
    if room in OUTSIDE_THE_ORDER:
        return []
    complaints = []
    for line, name in imported_names(path, source):
        top, _, rest = name.partition(".")
        if top != "paceline" or rest == "__version__":
            continue
        wanted = rest.split(".")[0]
        if wanted not in ROOMS:
            complaints.append(f"{path}:{line} fetches {name} through the front door, not from its room")
        elif ROOMS.index(wanted) > ROOMS.index(room):
            complaints.append(f"{path}:{line} {room} imports {wanted}, which is below it")
    return complaints


def test_every_top_level_name_is_a_room() -> None:
    assert unknown_rooms([entry.name for entry in SRC.iterdir()]) == []


def test_a_utility_drawer_is_no_room() -> None:
    names = ["utils.py", "law", "tree.py", "__init__.py"]
    assert unknown_rooms(names) == ["utils.py is no room of the house"]


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
    ],
)
def test_a_downward_import_is_seen(path: str, source: str) -> None:
    assert len(misdirected_imports(Path(path), source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("verify.py", "from paceline.tree import DraftTree\nfrom .law import law"),
        ("targets/hf/model.py", "from .cache import Cache\nfrom ..base import Target\nfrom ...law import x"),
        ("integrations/openai.py", "from paceline import __version__\nimport torch"),
        ("__init__.py", "from paceline.cli import main"),
    ],
)
def test_an_upward_import_is_allowed(path: str, source: str) -> None:
    assert misdirected_imports(Path(path), source) == []


PAPERS = ROOT / "papers"
PUBLIC = ("__future__", "paceline", "paceline.bench", "papers")


def private_imports(path: Path, source: str) -> list[str]:
    """What scripts of papers take from within the package, past its doors."""
    found = (
        (node.lineno, name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or "."] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
    )
    return [f"{path}:{n} imports {name}" for n, name in found if name.startswith("paceline.") and name not in PUBLIC]


def test_scripts_of_papers_use_what_users_have() -> None:
    files = sorted(PAPERS.rglob("*.py"))
    assert files
    assert [c for f in files for c in private_imports(f.relative_to(ROOT), f.read_text(encoding="utf8"))] == []
    assert len(private_imports(Path("a.py"), "from paceline.bench.run.desk import Plan\nimport paceline.law")) == 2


def test_what_scripts_of_papers_may_use_resolves() -> None:
    assert [name for name in paceline.bench.__all__ if getattr(paceline.bench, name, None) is None] == []


def test_every_script_of_papers_is_listed_and_every_item_has_its_line() -> None:
    readme = (PAPERS / "README.md").read_text(encoding="utf8")
    items = [line for line in readme.splitlines() if re.match(r"\| (Table|Figure) \d+ \|", line)]
    assert len(items) == 67
    for file in PAPERS.glob("*/*.py"):
        if re.match(r"(table|figure)\d", file.stem):
            assert any(f"`{file.parent.name}.{file.stem}" in line for line in items), file
    named = {name for line in items for name in re.findall(r"`(\w+\.(?:table|figure)\d\w*)", line)}
    assert [name for name in named if not (PAPERS / f"{name.replace('.', '/')}.py").exists()] == []


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
    environment = {**os.environ, "PYTHONPATH": str(SRC.parent)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    seconds, loaded = json.loads(done.stdout)
    return seconds, loaded


def test_the_door_opens_fast_and_brings_nothing_heavy() -> None:
    runs = [fresh_import("import paceline") for _ in range(3)]
    assert min(seconds for seconds, _ in runs) < IMPORT_SECONDS
    assert [loaded for _, loaded in runs] == [[], [], []]


def test_a_heavy_import_would_be_seen() -> None:
    assert fresh_import("import paceline, numpy")[1] == ["numpy"]
    assert fresh_import("import paceline; time.sleep(0.2)")[0] >= 0.2


EXTRAS = ("duckdb", "pyarrow", "ray", "datasets", "pandas", "matplotlib")
READING = re.compile(r"^\s*(?:import|from) (?:pandas|matplotlib)\b", re.MULTILINE)


def test_only_bench_reads_with_the_packages_of_its_extra() -> None:
    readers = {room_of(file.relative_to(SRC)) for file in source_files() if READING.search(file.read_text("utf8"))}
    assert readers == {"bench"}


def test_drafting_needs_no_package_of_an_extra() -> None:
    absent = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))"
    drafting = "from paceline.drafters import make_drafter; make_drafter('auto'); make_drafter('dictionary')"
    commands = "from paceline.cli import parser; parser()"
    done = subprocess.run(
        [sys.executable, "-c", f"{absent}; {drafting}; {commands}"],
        env={**os.environ, "PYTHONPATH": str(SRC.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


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
    assert len(stray_softmax(Path("engine/serial.py"), source)) == 1
    assert stray_softmax(Path("law/warp.py"), source) == []
    assert stray_softmax(Path("train/loss.py"), source) == []
    assert stray_softmax(Path("targets/hf/attention.py"), source) == []


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


# --- (f) the map in CONTRIBUTING.md is the tree -------------------------------------------------------------


def map_entries(page: str) -> list[str]:
    """The rooms that the first code block after the heading lists: the first word of each unindented line."""
    _, found, after = page.partition(f"\n{MAP_HEADING}\n")
    block = re.search(r"^```[^\n]*\n(.*?)^```", after, re.MULTILINE | re.DOTALL)
    if not found or block is None:
        return []
    lines = [line for line in block.group(1).splitlines() if line[:1].strip()]
    words = [line.split()[0] for line in lines]
    return [word.rstrip("/").removesuffix(".py") for word in words if word != "src/paceline/"]


def map_complaints(page: str, names: list[str]) -> list[str]:
    rooms = {name.removesuffix(".py") for name in names if name not in NOT_CODE}
    listed = Counter(map_entries(page))
    missing = sorted(rooms - OUTSIDE_THE_ORDER - set(listed))
    return [
        *(f"{room} is not on the map under '{MAP_HEADING}'" for room in missing),
        *(f"the map lists {name}, which does not exist" for name in sorted(set(listed) - rooms)),
        *(f"the map lists {name} {count} times" for name, count in sorted(listed.items()) if count > 1),
    ]


def test_the_map_is_the_tree() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf8")
    assert map_complaints(page, [entry.name for entry in SRC.iterdir()]) == []


def test_a_drifted_map_is_seen() -> None:
    text = "# x\n\n## The house\n\nwords\n\n```text\nlaw/  sampling\n  penalties\ntree  drafts\n```\n"
    assert map_complaints(text, ["law", "tree.py", "py.typed", "__init__.py", "__pycache__"]) == []
    assert map_complaints(text, ["law"]) == ["the map lists tree, which does not exist"]
    assert map_complaints(text, ["law", "tree.py", "cli"]) == ["cli is not on the map under '## The house'"]
    assert map_complaints(text.replace("tree ", "law/ "), ["law"]) == ["the map lists law 2 times"]
    assert len(map_complaints("no map at all", ["law", "tree.py"])) == 2


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


# --- (j) a setting of sampling is named in one file ---------------------------------------------------------

SETTINGS = frozenset(
    {
        *("top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
        *("logit_bias", "banned"),
    }
)
TABLE = "law/settings.py"
SETTINGS_ELSEWHERE = {
    "train/plans.py": "a generation_config.json that it writes for transformers",
}


def named_settings(path: Path, source: str) -> list[str]:
    """Mentions of a setting by name. `temperature` and `seed` are read by name in many rooms: every law has them."""
    if path.as_posix() in {TABLE, *SETTINGS_ELSEWHERE}:
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
    for name in SETTINGS_ELSEWHERE:
        assert named_settings(Path("other.py"), (SRC / name).read_text(encoding="utf8")) != [], f"{name} needs no leave"


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
