"""What can go wrong: the printed tree is the tree, and its root catches what users do wrong."""

import inspect
import re

import pytest

import paceline
from paceline import errors
from paceline.cli.failures import sentence

PRINTED = re.compile(r"^    (?P<indent>[ │├└─]*)(?P<name>[A-Z]\w+)(?: \((?P<other>\w+)\))?", re.MULTILINE)


def test_the_printed_tree_is_the_tree() -> None:
    above: list[type] = []
    printed = list(PRINTED.finditer(errors.__doc__ or ""))
    for found in printed:
        kind = getattr(errors, found["name"])
        del above[len(found["indent"]) // 4 :]
        if above:
            assert above[-1] in kind.__bases__, kind
        if found["other"]:
            assert found["other"] in [base.__name__ for base in kind.__mro__], kind
        above.append(kind)
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.PacelineError)]
    defined = {kind.__name__ for kind in kinds}
    assert {found["name"] for found in printed} == defined


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: paceline.load("no/such/model"),
        lambda: paceline.Settings(max_new_tokens=0),
        lambda: paceline.Sampling(temperature=-1.0),
    ],
)
def test_the_root_catches_a_users_mistake_and_so_does_value_error(mistake: object) -> None:
    for kind in (paceline.PacelineError, ValueError):
        with pytest.raises(kind) as caught:
            mistake()  # type: ignore[operator]
        assert sentence(caught.value) == str(caught.value)


def test_an_output_that_cannot_be_written_is_an_os_error_too() -> None:
    error = errors.UnwritableFile(28, "No space left on device", "page")
    assert (str(error), error.errno) == ("cannot write page: No space left on device", 28)
    assert isinstance(error, OSError)
    assert isinstance(error, ValueError)
    assert sentence(RuntimeError("a defect")) is None
