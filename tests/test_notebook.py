"""The notebook of the examples runs from its first cell to its last, and shows pictures."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from paceline.api.pictures.notebook import ROOT

HOME = Path(__file__).resolve().parent.parent
NOTEBOOK = HOME / "examples" / "notebook.ipynb"


def read() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def test_the_notebook_is_kept_without_outputs() -> None:
    assert outputs(read()) == []


@pytest.mark.filterwarnings("default")  # those of the libraries that run notebooks
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PYTHONPATH", str(HOME / "src")), ("OMP_NUM_THREADS", "1"), ("IPYTHONDIR", str(tmp_path))):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    notebook = read()
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    found = outputs(notebook)
    assert [output for output in found if output.output_type == "error" or output.get("name") == "stderr"] == []
    pictures = [output.data["text/html"] for output in found if "text/html" in output.get("data", {})]
    assert len(pictures) == 2
    assert all(ROOT in picture for picture in pictures)
    lines = [output.data["text/plain"] for output in found if "text/plain" in output.get("data", {})]
    assert lines[0].startswith("<language model pocket")
    assert all("\n" not in line for line in lines[:2])
